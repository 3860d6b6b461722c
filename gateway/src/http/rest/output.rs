//! JSON documents of the native API.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use chrono::{DateTime, Utc};
use mantle_types::EntryId;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    data::OWN_CHECKSUM,
    http::problem::Failure,
    store::{Entry, Metadata},
};

pub type Answer = Result<Response, Failure>;

pub fn document(status: StatusCode, body: &impl Serialize) -> Answer {
    Ok((status, axum::Json(body)).into_response())
}

#[derive(Serialize)]
pub struct Changed<'a> {
    pub path: &'a str,
    /// Permanent; a rename keeps it.
    pub id: EntryId,
}

#[derive(Serialize)]
pub struct EntryView {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    path: String,
    id: EntryId,
    owner: u32,
    group: u32,
    mode: String,
    version: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    explicit: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    synthetic: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    has_data: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_metadata: Option<Map<String, Value>>,
    /// What S3 keeps besides: headers (`cache-control`, …), and `checksum-` with the algorithm.
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<DateTime<Utc>>,
}

impl EntryView {
    /// The entry at `path`. Directories' paths end in a slash; the root's is empty.
    pub fn new(path: String, entry: Entry) -> Self {
        let directory = entry.is_directory();
        let [user_metadata, headers] = split_metadata(entry.metadata.and_then(Metadata::into_document));
        Self {
            kind: if directory { "directory" } else { "object" },
            name: entry.name.trim_end_matches('/').to_owned(),
            path,
            id: entry.id,
            owner: entry.permission.owner,
            group: entry.permission.group,
            mode: format!("{:04o}", entry.permission.mode),
            version: entry.version,
            explicit: directory.then_some(entry.explicit),
            size: (!directory).then_some(entry.size),
            synthetic: (!directory).then_some(entry.synthetic),
            has_data: (!directory).then_some(entry.locator.is_some()),
            etag: entry.etag,
            content_type: entry.content_type,
            user_metadata,
            headers,
            created: entry.created,
            modified: entry.modified,
        }
    }
}

/// User metadata, and what is kept besides it: its names begin with a colon.
fn split_metadata(kept: Option<Value>) -> [Option<Map<String, Value>>; 2] {
    let Some(Value::Object(kept)) = kept else { return [None, None] };
    let (mut user, mut headers) = (Map::new(), Map::new());
    for (name, value) in kept.into_iter().filter(|(name, _)| name != OWN_CHECKSUM) {
        match name.strip_prefix(':') {
            Some(header) => headers.insert(header.to_owned(), value),
            None => user.insert(name, value),
        };
    }
    [user, headers].map(|map| (!map.is_empty()).then_some(map))
}

/// The path of an entry; the request may have left out a directory's slash.
pub fn path_of(key: &str, entry: &Entry) -> String {
    let bare = key.strip_suffix('/').unwrap_or(key);
    if entry.is_directory() && !bare.is_empty() { format!("{bare}/") } else { bare.to_owned() }
}
