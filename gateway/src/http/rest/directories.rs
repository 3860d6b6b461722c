//! mkdir, rmdir, rename, list, usage.

use std::sync::Arc;

use axum::{extract::State, response::IntoResponse};
use mantle_types::{Error, ErrorCode, limits::LIST_KEYS_MAX};
use serde::{Deserialize, Serialize};

use super::{
    input::{Input, Json},
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

pub async fn mkdir(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.verb("mkdir");
    let MkdirParameters { parents } = input.query()?;
    let (gateway, path) = (app.gateway.clone(), input.directory_prefix());
    let (key, options) = (path.clone(), Mkdir { parents, ..Mkdir::default() });
    let id = run_detached(async move { gateway.mkdir(&input.call, &input.ns, &key, options).await }).await?;
    document(status::CREATED, &Changed { path: &path, id: id.into() })
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

pub async fn rename(State(app): State<Arc<App>>, input: Input, Json(rename): Json<Rename>) -> Answer {
    let input = input.without_parameters("rename")?;
    let (gateway, path) = (app.gateway.clone(), rename.destination.clone());
    let id = run_detached(async move { gateway.rename(&input.call, &input.ns, &rename).await }).await?;
    document(status::DONE, &Changed { path: &path, id })
}

pub async fn list(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.verb("list");
    let ListParameters { limit, cursor } = input.query()?;
    let limit = limit.unwrap_or(LIST_KEYS_MAX);
    if !(1..=LIST_KEYS_MAX).contains(&limit) {
        return Err(Error::new(ErrorCode::InvalidArgument, format!("limit must be from 1 to {LIST_KEYS_MAX}")).into());
    }
    let after = match cursor.as_deref().map(decode_token).transpose()? {
        None | Some(After::Start) => None,
        Some(After::Key(name) | After::Prefix(name)) => Some(name),
    };
    let page = app.gateway.list(&input.call, &input.ns, input.directory_key(), after.as_deref(), limit).await?;
    let cursor = page.entries.last().filter(|_| page.truncated);
    let cursor = cursor.map(|entry| encode_token(&After::Key(entry.name.clone())));
    let base = input.directory_prefix();
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
    let mut usage = app.gateway.usage(&input.call, &input.ns, input.directory_key(), depth).await?;
    let base = input.directory_prefix();
    usage.below.iter_mut().flatten().for_each(|row| row.path.insert_str(0, &base));
    document(status::DONE, &usage)
}
