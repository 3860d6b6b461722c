//! mkdir, rmdir, rename, list, usage.

use std::sync::Arc;

use axum::{extract::State, response::IntoResponse};
use mantle_types::{Error, ErrorCode, limits::LIST_KEYS_MAX};
use serde::{Deserialize, Serialize};

use super::{
    input::{Input, Json},
    namespaces::NoParameters,
    output::{Answer, Changed, EntryView, document},
};
use crate::{
    disconnect::run_detached,
    http::{App, status},
    listing::{After, decode_token, encode_token},
    ops::{mkdir::Mkdir, rename::Rename, usage::Depth},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MkdirParameters {
    #[serde(default)]
    parents: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RmdirParameters {
    #[serde(default)]
    recursive: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenameBody {
    src: String,
    dst: String,
    #[serde(default)]
    overwrite: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListParameters {
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageParameters {
    depth: Option<u32>,
}

#[derive(Serialize)]
struct ListPage {
    entries: Vec<EntryView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

#[derive(Serialize)]
struct UsageView {
    objects: i64,
    directories: i64,
    bytes: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    below: Option<Vec<DirectoryUsage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<bool>,
}

#[derive(Serialize)]
struct DirectoryUsage {
    path: String,
    objects: i64,
    directories: i64,
    bytes: i64,
}

pub async fn mkdir(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.verb("mkdir");
    let parameters: MkdirParameters = input.query()?;
    let key = format!("{}/", input.directory_key());
    let id = {
        let (gateway, call, ns) = (app.gateway.clone(), input.call.clone(), input.ns.clone());
        let key = if key == "/" { String::new() } else { key.clone() };
        let options = Mkdir { parents: parameters.parents, ..Mkdir::default() };
        run_detached(async move { gateway.mkdir(&call, &ns, &key, options).await }).await?
    };
    document(status::CREATED, &Changed { path: &key, id: id.into() })
}

pub async fn rmdir(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.verb("rmdir");
    if input.query::<RmdirParameters>()?.recursive {
        return super::operations::remove_tree(app, input).await;
    }
    let gateway = app.gateway.clone();
    run_detached(async move { gateway.rmdir(&input.call, &input.ns, input.directory_key()).await }).await?;
    Ok(status::REMOVED.into_response())
}

pub async fn rename(State(app): State<Arc<App>>, input: Input, Json(body): Json<RenameBody>) -> Answer {
    let input = input.verb("rename");
    input.query::<NoParameters>()?;
    let path = body.dst.clone();
    let rename = Rename { source: body.src, destination: body.dst, overwrite: body.overwrite };
    let gateway = app.gateway.clone();
    let id = run_detached(async move { gateway.rename(&input.call, &input.ns, &rename).await }).await?;
    document(status::DONE, &Changed { path: &path, id })
}

pub async fn list(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.verb("list");
    let parameters: ListParameters = input.query()?;
    let limit = parameters.limit.unwrap_or(LIST_KEYS_MAX);
    if !(1..=LIST_KEYS_MAX).contains(&limit) {
        return Err(Error::new(ErrorCode::InvalidArgument, format!("limit must be from 1 to {LIST_KEYS_MAX}")).into());
    }
    let after = match parameters.cursor.as_deref().map(decode_token).transpose()? {
        None | Some(After::Start) => None,
        Some(After::Key(name) | After::Prefix(name)) => Some(name),
    };
    let page = app.gateway.list(&input.call, &input.ns, input.directory_key(), after.as_deref(), limit).await?;
    let cursor = page.entries.last().filter(|_| page.truncated);
    let cursor = cursor.map(|entry| encode_token(&After::Key(entry.name.clone())));
    let base = match input.directory_key() {
        "" => String::new(),
        key => format!("{key}/"),
    };
    let view = |entry: crate::store::Entry| EntryView::new(format!("{base}{}", entry.name), entry);
    document(status::DONE, &ListPage { entries: page.entries.into_iter().map(view).collect(), cursor })
}

pub async fn usage(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.verb("usage");
    let depth = match input.query::<UsageParameters>()?.depth {
        None => Depth::Subtree,
        Some(0) => Depth::Own,
        Some(levels) => Depth::Levels(levels),
    };
    let usage = app.gateway.usage(&input.call, &input.ns, input.directory_key(), depth).await?;
    let base = match input.directory_key() {
        "" => String::new(),
        key => format!("{key}/"),
    };
    let view = |row: crate::store::SubtreeTotals| DirectoryUsage {
        path: format!("{base}{}", row.path),
        objects: row.objects,
        directories: row.directories,
        bytes: row.bytes,
    };
    let truncated = usage.below.is_some().then_some(usage.truncated);
    let below = usage.below.map(|rows| rows.into_iter().map(view).collect());
    let (objects, directories, bytes) = (usage.objects, usage.directories, usage.bytes);
    document(status::DONE, &UsageView { objects, directories, bytes, below, truncated })
}
