//! stat, batch stat, set attributes.

use std::sync::Arc;

use axum::extract::State;
use mantle_types::{
    Error, ErrorCode, Result,
    limits::{MODE_MAX, USER_METADATA_BYTES_MAX},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    input::{Input, Json, octal},
    output::{Answer, Changed, EntryView, document, path_of},
};
use crate::{
    disconnect::run_detached,
    http::{App, status},
    ops::{set_attributes::Attributes, stat::Naming},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatBody {
    paths: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttributesBody {
    owner: Option<u32>,
    group: Option<u32>,
    /// Octal text, as in the answer of `stat`.
    mode: Option<String>,
    user_metadata: Option<Map<String, Value>>,
}

#[derive(Serialize)]
struct StatPage {
    entries: Vec<StatAnswer>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum StatAnswer {
    Found { path: String, entry: Box<EntryView> },
    Failed { path: String, error: Refusal },
}

#[derive(Serialize)]
struct Refusal {
    code: &'static str,
    detail: String,
}

pub async fn stat(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.without_parameters("stat")?;
    let found = app.gateway.stat(&input.call, &input.ns, &input.path, Naming::Either).await?;
    document(status::DONE, &EntryView::new(path_of(&input.path, &found), found))
}

pub async fn stat_many(State(app): State<Arc<App>>, input: Input, Json(body): Json<StatBody>) -> Answer {
    let input = input.without_parameters("stat_many")?;
    let limit = app.gateway.limits.stat_paths_max;
    if body.paths.len() > limit {
        return Err(Error::new(ErrorCode::BatchTooLarge, format!("at most {limit} paths are allowed")).into());
    }
    let answers = app.gateway.stat_many(&input.call, &input.ns, &body.paths).await?;
    let view = |(path, answer): (String, Result<crate::store::Entry>)| match answer {
        Ok(entry) => StatAnswer::Found { entry: Box::new(EntryView::new(path_of(&path, &entry), entry)), path },
        Err(e) => {
            let error = Refusal { code: e.code().row().name, detail: e.detail().to_owned() };
            StatAnswer::Failed { path, error }
        }
    };
    document(status::DONE, &StatPage { entries: body.paths.into_iter().zip(answers).map(view).collect() })
}

pub async fn set_attributes(State(app): State<Arc<App>>, input: Input, Json(body): Json<AttributesBody>) -> Answer {
    let input = input.without_parameters("set_attributes")?;
    let new = attributes(body)?;
    let (gateway, call) = (app.gateway.clone(), input.call.clone());
    let (ns, path) = (input.ns.clone(), input.path.clone());
    let id = run_detached(async move { gateway.set_attributes(&call, &ns, &path, &new).await }).await?;
    document(status::DONE, &Changed { path: &input.path, id })
}

fn attributes(body: AttributesBody) -> Result<Attributes> {
    let invalid = |why: &str| Error::new(ErrorCode::InvalidArgument, why);
    let in_range = |id: Option<u32>| id.is_none_or(|id| i32::try_from(id).is_ok());
    if !in_range(body.owner) || !in_range(body.group) {
        return Err(invalid("owner and group must be below 2^31"));
    }
    let mode = body.mode.as_deref().map(|text| octal("mode", text, MODE_MAX)).transpose()?;
    if let Some(metadata) = &body.user_metadata {
        // S3's x-amz-meta-* headers must be able to carry them.
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
        let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.chars().any(char::is_control));
        let valid = |key: &str, value: &Value| !key.is_empty() && key.chars().all(is_name) && is_text(value);
        if !metadata.iter().all(|(key, value)| valid(key, value)) {
            return Err(invalid(
                "user_metadata maps names of a-z, 0-9, `-`, `_` and `.` to strings without control characters",
            ));
        }
        let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
        if bytes > USER_METADATA_BYTES_MAX {
            return Err(invalid(&format!("user_metadata has at most {USER_METADATA_BYTES_MAX} bytes, names included")));
        }
    }
    let AttributesBody { owner, group, user_metadata, .. } = body;
    let new = Attributes { owner, group, mode, user_metadata: user_metadata.map(Value::Object), part_of: None };
    if new == Attributes::default() { Err(invalid("nothing to change")) } else { Ok(new) }
}
