//! ListMultipartUploads: the unfinished uploads of a namespace, in the order of keys and ids, with a delimiter as in
//! listings of objects. Its owner and uid 0 see all, others their own.

use chrono::{DateTime, Utc};
use mantle_types::{Error, ErrorCode, Result};

use super::{super::locate::Purpose, name_of, upload_id};
use crate::{
    app::{Call, Gateway},
    data::{Algorithm, ChecksumKind},
    store::Upload,
};

/// An upload in a listing.
#[derive(Clone, Debug)]
pub struct ListedUpload {
    pub key: String,
    pub name: String,
    pub owner: u32,
    /// `None` if the client chose none.
    pub checksum: Option<(Algorithm, ChecksumKind)>,
    pub created: DateTime<Utc>,
}

#[derive(Clone, Debug, Default)]
pub struct UploadsPage {
    pub uploads: Vec<ListedUpload>,
    pub common_prefixes: Vec<String>,
    /// Key and, if the page ends in an upload, name to go on after.
    pub next: Option<(String, Option<String>)>,
}

/// Which uploads are wanted.
#[derive(Clone, Debug, Default)]
pub struct UploadsQuery {
    pub prefix: String,
    /// Empty: none.
    pub delimiter: String,
    pub after_key: String,
    /// Of the uploads of `after_key`, those after this one.
    pub after_name: Option<String>,
    pub limit: usize,
}

/// Above every id.
const NO_MORE: i64 = i64::MAX;

impl Gateway {
    pub async fn list_uploads(&self, call: &Call, namespace: &str, query: &UploadsQuery) -> Result<UploadsPage> {
        let root = self.locate(&call.caller, namespace, &[], Purpose::Lookup).await?;
        root.check_list(&call.caller)?;
        let principal = (!self.sees_all_uploads(call, namespace).await?).then_some(call.caller.uid);
        let mut page = UploadsPage::default();
        let mut after = start(query)?;
        while page.next.is_none() {
            let room = query.limit - page.uploads.len() - page.common_prefixes.len() + 1;
            let found = self.store.list_uploads(root.ns, &query.prefix, (&after.0, after.1), principal, room).await?;
            let is_last = found.len() < room;
            for upload in found {
                // The last common prefix stands for it.
                if (upload.key.as_str(), upload.id.0) <= (after.0.as_str(), after.1) {
                    continue;
                }
                if page.uploads.len() + page.common_prefixes.len() == query.limit {
                    page.next = Some(end_of(&page));
                    break;
                }
                match common_prefix(&upload.key, query) {
                    Some(prefix) => {
                        after = (last_below(&prefix), NO_MORE);
                        page.common_prefixes.push(prefix);
                    }
                    None => {
                        after = (upload.key.clone(), upload.id.0);
                        page.uploads.push(listed(upload)?);
                    }
                }
            }
            if is_last {
                break;
            }
        }
        Ok(page)
    }
}

/// The key and the id after which a page begins.
fn start(query: &UploadsQuery) -> Result<(String, i64)> {
    let id = match &query.after_name {
        // S3 ignores a name without a key.
        Some(name) if !query.after_key.is_empty() => {
            upload_id(name).map_err(|_| Error::new(ErrorCode::InvalidArgument, "Invalid uploadId marker"))?.0
        }
        _ if query.after_key.is_empty() => 0,
        _ => NO_MORE,
    };
    // A marker that is a common prefix stands for everything below it.
    match !query.delimiter.is_empty() && query.after_key.ends_with(&query.delimiter) {
        true => Ok((last_below(&query.after_key), NO_MORE)),
        false => Ok((query.after_key.clone(), id)),
    }
}

/// Where a full page ends.
fn end_of(page: &UploadsPage) -> (String, Option<String>) {
    let upload = page.uploads.last();
    match page.common_prefixes.last() {
        Some(prefix) if upload.is_none_or(|upload| upload.key < *prefix) => (prefix.clone(), None),
        _ => upload.map(|upload| (upload.key.clone(), Some(upload.name.clone()))).unwrap_or_default(),
    }
}

/// A text after all keys that begin with a prefix: no key has this character so often.
fn last_below(prefix: &str) -> String {
    format!("{prefix}{}", "\u{10ffff}".repeat(mantle_types::limits::KEY_BYTES_MAX / 4 + 1))
}

fn common_prefix(key: &str, query: &UploadsQuery) -> Option<String> {
    let rest = key.strip_prefix(&query.prefix).filter(|_| !query.delimiter.is_empty())?;
    let end = rest.find(&query.delimiter)? + query.delimiter.len();
    Some(format!("{}{}", query.prefix, &rest[..end]))
}

fn listed(upload: Upload) -> Result<ListedUpload> {
    let checksum = super::checksum_of(&upload)?;
    Ok(ListedUpload {
        name: name_of(upload.id),
        owner: upload.attempt.principal,
        checksum: upload.checksum_algorithm.is_some().then_some(checksum),
        created: upload.created,
        key: upload.key,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_folded_at_the_delimiter() {
        let query = |prefix: &str, delimiter: &str| UploadsQuery {
            prefix: prefix.to_owned(),
            delimiter: delimiter.to_owned(),
            ..UploadsQuery::default()
        };
        assert_eq!(common_prefix("a/b/c", &query("", "/")).as_deref(), Some("a/"));
        assert_eq!(common_prefix("a/b/c", &query("a/", "/")).as_deref(), Some("a/b/"));
        assert_eq!(common_prefix("a/b", &query("a/", "/")), None);
        assert_eq!(common_prefix("a/b", &query("", "")), None);
        assert!(*last_below("a/") > *"a/\u{10fffe}z");
        assert!(*last_below("a/") < *"a0");
    }
}
