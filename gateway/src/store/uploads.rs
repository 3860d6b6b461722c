//! Multipart uploads and the manifests of the objects that they become. Each statement goes to the node of the upload's
//! id, except those that look for uploads.

use chrono::{DateTime, Utc};
use mantle_types::{Caller, EntryId, NamespaceId, PartitionId, Result, request::derive_request_id};
use serde_json::Value;
use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use super::{LeasedPartition, Store, database::one, prepared::wait_for_prepared, rows, sql};

/// Number of an upload, and of the manifest of its object: an id of its own, of those of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadId(pub i64);

/// Beginning of the locator of an object that has a manifest, before the upload's number.
const MANIFEST: &str = "manifest:";

impl UploadId {
    /// Where the upload's rows are.
    pub fn partition(self) -> PartitionId {
        self.0.into()
    }

    /// The locator of the upload's object.
    pub fn manifest(self) -> String {
        format!("{MANIFEST}{}", self.0)
    }

    /// The upload whose parts are an object's bytes; `None` for a locator of one file.
    pub fn of_manifest(locator: &str) -> Option<Self> {
        locator.strip_prefix(MANIFEST)?.parse().ok().map(Self)
    }
}

impl From<EntryId> for UploadId {
    fn from(id: EntryId) -> Self {
        Self(id.as_i64())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadState {
    /// Takes parts.
    Open,
    /// Its parts are chosen, and its object is being made.
    Sealed,
    /// Its object was made.
    Done,
}

fn state(row: &Row) -> Result<UploadState> {
    Ok(match rows::get::<&str>(row, "state")? {
        "open" => UploadState::Open,
        "sealed" => UploadState::Sealed,
        _ => UploadState::Done,
    })
}

/// An attempt to make an upload's object: whose request it is, and in which directory the object is put.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    pub upload: UploadId,
    pub ns: NamespaceId,
    pub principal: u32,
    pub number: i32,
    /// `None` while the upload is open.
    pub destination: Option<PartitionId>,
}

impl Attempt {
    /// The request id under which the object is put: the same for everyone who makes this attempt.
    pub fn request(&self) -> Uuid {
        let upload = Uuid::from_u64_pair(self.ns.0, self.upload.0 as u64);
        derive_request_id(upload, &format!("complete_upload {}", self.number))
    }
}

#[derive(Clone, Debug)]
pub struct NewUpload<'a> {
    pub ns: NamespaceId,
    pub key: &'a str,
    pub owner: u32,
    pub group: u32,
    pub content_type: Option<&'a str>,
    pub user_metadata: Option<&'a Value>,
    pub checksum_algorithm: Option<&'a str>,
    pub checksum_type: &'a str,
}

#[derive(Clone, Debug)]
pub struct Upload {
    pub id: UploadId,
    pub key: String,
    pub attempt: Attempt,
    pub group: u32,
    pub content_type: Option<String>,
    pub user_metadata: Option<Value>,
    /// As in `x-amz-checksum-…`; `None` if the client chose none.
    pub checksum_algorithm: Option<String>,
    pub checksum_type: String,
    pub state: UploadState,
    /// Of the parts that were chosen; this and what follows only when sealed or done.
    pub list_hash: Option<i64>,
    pub etag: Option<String>,
    pub checksum: Option<String>,
    pub created: DateTime<Utc>,
}

impl Upload {
    fn read(row: &Row, ns: NamespaceId) -> Result<Self> {
        let id = UploadId(rows::get(row, "id")?);
        Ok(Self {
            id,
            key: rows::get(row, "key")?,
            attempt: attempt(row, id, ns)?,
            group: rows::get::<i32>(row, "grp")? as u32,
            content_type: rows::get_opt(row, "content_type")?,
            user_metadata: rows::get_opt(row, "user_metadata")?,
            checksum_algorithm: rows::get_opt(row, "checksum_algorithm")?,
            checksum_type: rows::get(row, "checksum_type")?,
            state: state(row)?,
            list_hash: rows::get_opt(row, "list_hash")?,
            etag: rows::get_opt(row, "etag")?,
            checksum: rows::get_opt(row, "checksum")?,
            created: rows::get(row, "created")?,
        })
    }
}

fn attempt(row: &Row, upload: UploadId, ns: NamespaceId) -> Result<Attempt> {
    Ok(Attempt {
        upload,
        ns,
        principal: rows::get::<i32>(row, "principal")? as u32,
        number: rows::get(row, "attempt")?,
        destination: rows::get_opt::<i64>(row, "destination")?.map(Into::into),
    })
}

/// An upload as the sweeper sees it.
#[derive(Clone, Debug)]
pub struct SweptUpload {
    pub attempt: Attempt,
    /// `false` if its namespace was removed.
    pub is_in_namespace: bool,
    pub state: UploadState,
    pub created: DateTime<Utc>,
    /// When the state changed last.
    pub changed: DateTime<Utc>,
}

/// Bytes in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    pub locator: String,
    /// First byte in the file.
    pub start: u64,
    pub length: u64,
}

#[derive(Clone, Debug)]
pub struct NewPart {
    pub number: i32,
    /// MD5 in hexadecimal.
    pub etag: String,
    /// Base64.
    pub checksum: String,
    pub extents: Vec<Extent>,
}

#[derive(Clone, Debug)]
pub struct Part {
    pub number: i32,
    pub size: u64,
    pub etag: String,
    pub checksum: String,
    pub created: DateTime<Utc>,
}

/// A part of an object that has a manifest.
#[derive(Clone, Debug)]
pub struct PartOfObject {
    pub first_byte: u64,
    pub size: u64,
    /// Base64.
    pub checksum: String,
    /// How many parts the object has.
    pub parts: u32,
}

/// What an upload becomes.
#[derive(Clone, Debug)]
pub struct Sealing<'a> {
    pub parts: &'a [i32],
    pub etags: &'a [&'a str],
    pub list_hash: i64,
    pub destination: PartitionId,
    pub etag: &'a str,
    pub size: u64,
    pub checksum: &'a str,
}

#[derive(Clone, Copy, Debug)]
pub struct Sealed {
    pub state: UploadState,
    pub attempt: Attempt,
}

/// The object whose bytes a part uses, as it was read.
#[derive(Clone, Copy, Debug)]
pub struct SourceOfPart<'a> {
    pub directory: LeasedPartition,
    pub entry: &'a rows::Entry,
}

fn locators(row: &Row) -> Result<Vec<String>> {
    Ok(rows::get_opt(row, "old_locators")?.unwrap_or_default())
}

/// The locators that a change answers; a code is an error.
pub(super) fn accepted(row: &Row) -> Result<Vec<String>> {
    match rows::code(row)? {
        None => locators(row),
        Some(code) => Err(code.into()),
    }
}

impl Store {
    pub async fn create_upload(&self, id: EntryId, new: &NewUpload<'_>) -> Result<rows::Coded> {
        let row = self
            .query_one_at(
                UploadId::from(id).partition(),
                &sql::CREATE_UPLOAD,
                &[
                    (&id.as_i64(), Type::INT8),
                    (&new.ns.as_i64(), Type::INT8),
                    (&new.key, Type::TEXT),
                    (&(new.owner as i32), Type::INT4),
                    (&(new.group as i32), Type::INT4),
                    (&new.content_type, Type::TEXT),
                    (&new.user_metadata, Type::JSONB),
                    (&new.checksum_algorithm, Type::TEXT),
                    (&new.checksum_type, Type::TEXT),
                ],
            )
            .await?;
        Ok((rows::code(&row)?, rows::Written { id, ..rows::Written::default() }))
    }

    /// An upload of a namespace, in any state.
    pub async fn upload(&self, ns: NamespaceId, id: UploadId) -> Result<Option<Upload>> {
        let params = [(&id.0 as _, Type::INT8), (&ns.as_i64() as _, Type::INT8)];
        let rows = self.query_at(id.partition(), &sql::UPLOAD, &params).await?;
        rows.first().map(|row| Upload::read(row, ns)).transpose()
    }

    /// Records a part whose bytes are stored; answers the locators of bytes that it replaces. With a source, the bytes are
    /// those of that object.
    pub async fn put_part(
        &self,
        caller: &Caller,
        ns: NamespaceId,
        upload: LeasedPartition,
        part: &NewPart,
        source: Option<SourceOfPart<'_>>,
    ) -> Result<Vec<String>> {
        let locators: Vec<&str> = part.extents.iter().map(|extent| extent.locator.as_str()).collect();
        let starts: Vec<i64> = part.extents.iter().map(|extent| extent.start as i64).collect();
        let lengths: Vec<i64> = part.extents.iter().map(|extent| extent.length as i64).collect();
        let (id, ns, lease) = (upload.pid.as_i64(), ns.as_i64(), upload.lease.to_string());
        let caller = caller.to_string();
        let of_part: [super::Param<'_>; 8] = [
            (&id, Type::INT8),
            (&ns, Type::INT8),
            (&part.number, Type::INT4),
            (&part.etag, Type::TEXT),
            (&part.checksum, Type::TEXT),
            (&locators, Type::TEXT_ARRAY),
            (&starts, Type::INT8_ARRAY),
            (&lengths, Type::INT8_ARRAY),
        ];
        let Some(source) = source else {
            let params = [&of_part[..], &[(&false, Type::BOOL), (&lease, Type::TEXT), (&caller, Type::TEXT)]].concat();
            // Not sent again: it could name bytes that were replaced and freed since the first time.
            let rows = self.query_at(upload.pid, &sql::PUT_PART, &params).await?;
            return accepted(&one(&sql::PUT_PART, rows)?);
        };
        let entry = source.entry;
        let (pid, source_id) = (source.directory.pid.as_i64(), entry.id.as_i64());
        let parent = source.directory.permission.map(|permission| permission.to_string());
        let of_source: [super::Param<'_>; 4] =
            [(&pid, Type::INT8), (&entry.name, Type::TEXT), (&source_id, Type::INT8), (&entry.version, Type::INT8)];
        let by: [super::Param<'_>; 3] = [(&lease, Type::TEXT), (&caller, Type::TEXT), (&parent, Type::TEXT)];
        let params = [&of_source[..], &of_part[..], &by[..]].concat();
        let replaced = accepted(&self.query_one_at(upload.pid, &sql::COPY_PART, &params).await?)?;
        if self.nodes.are_apart(source.directory.pid, upload.pid) {
            wait_for_prepared(&self.nodes).await?;
        }
        Ok(replaced)
    }

    /// The parts after a number, in order.
    pub async fn list_parts(&self, upload: UploadId, after: i32, limit: i32) -> Result<Vec<Part>> {
        let params = [(&upload.0 as _, Type::INT8), (&after as _, Type::INT4), (&limit as _, Type::INT4)];
        let rows = self.query_at(upload.partition(), &sql::LIST_PARTS, &params).await?;
        let read = |row| {
            Ok(Part {
                number: rows::get(row, "part")?,
                size: rows::get::<i64>(row, "size")? as u64,
                etag: rows::get(row, "etag")?,
                checksum: rows::get_opt(row, "checksum")?.unwrap_or_default(),
                created: rows::get(row, "created")?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Unfinished uploads after a key and an id, in their order; `principal`: only of one.
    pub async fn list_uploads(
        &self,
        ns: NamespaceId,
        prefix: &str,
        after: (&str, i64),
        principal: Option<u32>,
        limit: usize,
    ) -> Result<Vec<Upload>> {
        let (principal, limit) = (principal.map(|uid| uid as i32), limit as i32);
        let params: [super::Param<'_>; 6] = [
            (&ns.as_i64(), Type::INT8),
            (&prefix, Type::TEXT),
            (&after.0, Type::TEXT),
            (&after.1, Type::INT8),
            (&principal, Type::INT4),
            (&limit, Type::INT4),
        ];
        let rows = self.query(&sql::LIST_UPLOADS, &params).await?;
        rows.iter().map(|row| Upload::read(row, ns)).collect()
    }

    /// All uploads after an id, in their order.
    pub async fn all_uploads(&self, after: i64, limit: usize) -> Result<Vec<SweptUpload>> {
        let limit = limit as i32;
        let rows = self.query(&sql::ALL_UPLOADS, &[(&after, Type::INT8), (&limit, Type::INT4)]).await?;
        let read = |row| {
            Ok(SweptUpload {
                attempt: attempt(row, UploadId(rows::get(row, "id")?), rows::get::<i64>(row, "ns")?.into())?,
                is_in_namespace: rows::get(row, "is_in_namespace")?,
                state: state(row)?,
                created: rows::get(row, "created")?,
                changed: rows::get(row, "changed")?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Chooses the parts of an upload. The attempt that is answered may be an earlier one, to another directory.
    pub async fn seal_upload(&self, caller: &Caller, attempt: Attempt, sealing: &Sealing<'_>) -> Result<Sealed> {
        let Attempt { upload, ns, .. } = attempt;
        let params: [super::Param<'_>; 10] = [
            (&upload.0, Type::INT8),
            (&ns.as_i64(), Type::INT8),
            (&sealing.parts, Type::INT4_ARRAY),
            (&sealing.etags, Type::TEXT_ARRAY),
            (&sealing.list_hash, Type::INT8),
            (&sealing.destination.as_i64(), Type::INT8),
            (&sealing.etag, Type::TEXT),
            (&(sealing.size as i64), Type::INT8),
            (&sealing.checksum, Type::TEXT),
            (&caller.to_string(), Type::TEXT),
        ];
        let row = self.query_one_at(upload.partition(), &sql::SEAL_UPLOAD, &params).await?;
        if let Some(code) = rows::code(&row)? {
            return Err(code.into());
        }
        let number = rows::get(&row, "attempt")?;
        let destination = rows::get_opt::<i64>(&row, "destination")?.map(Into::into);
        Ok(Sealed { state: state(&row)?, attempt: Attempt { number, destination, ..attempt } })
    }

    /// Makes sure that the attempt's object is not put any more; `true` if it was put.
    pub async fn fence_upload(&self, attempt: Attempt) -> Result<bool> {
        let Some(destination) = attempt.destination else { return Ok(false) };
        let params: [super::Param<'_>; 4] = [
            (&destination.as_i64(), Type::INT8),
            (&attempt.ns.as_i64(), Type::INT8),
            (&(attempt.principal as i32), Type::INT4),
            (&attempt.request(), Type::UUID),
        ];
        let row = self.query_one_at(destination, &sql::FENCE_REQUEST, &params).await?;
        rows::get(&row, "was_carried_out")
    }

    /// Opens the upload again, after [`Self::fence_upload`] has answered `false`.
    pub async fn unseal_upload(&self, attempt: Attempt) -> Result<()> {
        let params = [(&attempt.upload.0 as _, Type::INT8), (&attempt.number as _, Type::INT4)];
        self.query_one_at(attempt.upload.partition(), &sql::UNSEAL_UPLOAD, &params).await.map(drop)
    }

    /// Ends an upload whose object was put; answers the locators of parts that were not chosen.
    pub async fn finish_upload(&self, attempt: Attempt) -> Result<Vec<String>> {
        let params = [(&attempt.upload.0 as _, Type::INT8), (&attempt.number as _, Type::INT4)];
        locators(&self.query_one_at(attempt.upload.partition(), &sql::FINISH_UPLOAD, &params).await?)
    }

    /// Ends an open upload; answers the locators of its bytes. Without a caller: because it is over.
    pub async fn abort_upload(&self, caller: Option<&Caller>, upload: UploadId) -> Result<Vec<String>> {
        let caller = caller.map(Caller::to_string);
        let params = [(&upload.0 as _, Type::INT8), (&caller as _, Type::TEXT)];
        accepted(&self.query_one_at(upload.partition(), &sql::ABORT_UPLOAD, &params).await?)
    }

    /// Removes the manifest of an object that is gone, this long after the first call; answers the locators that it named.
    pub async fn drop_manifest(&self, upload: UploadId, read_grace_ms: u64) -> Result<Vec<String>> {
        let grace = read_grace_ms as i64;
        let params = [(&upload.0 as _, Type::INT8), (&grace as _, Type::INT8)];
        locators(&self.query_one_at(upload.partition(), &sql::DROP_MANIFEST, &params).await?)
    }

    /// A part of an object; `None` if it has no such part.
    pub async fn part_of_object(&self, manifest: UploadId, number: u32) -> Result<Option<PartOfObject>> {
        let number = number as i32;
        let params = [(&manifest.0 as _, Type::INT8), (&number as _, Type::INT4)];
        let rows = self.query_at(manifest.partition(), &sql::PART_OF_OBJECT, &params).await?;
        let read = |row| {
            Ok(PartOfObject {
                first_byte: rows::get::<i64>(row, "first_byte")? as u64,
                size: rows::get::<i64>(row, "size")? as u64,
                checksum: rows::get_opt(row, "checksum")?.unwrap_or_default(),
                parts: rows::get::<i64>(row, "parts")? as u32,
            })
        };
        rows.first().map(read).transpose()
    }

    /// How many uploads of a namespace are not finished, and how many bytes they have.
    pub async fn upload_usage(&self, ns: NamespaceId) -> Result<(i64, i64)> {
        let row = self.query_one(&sql::UPLOAD_USAGE, &[(&ns.as_i64(), Type::INT8)]).await?;
        Ok((rows::get(&row, "uploads")?, rows::get(&row, "bytes")?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_known_by_its_locator() {
        assert_eq!(UploadId::of_manifest(&UploadId(1030).manifest()), Some(UploadId(1030)));
        for other in ["objects/00/1030", "manifest:", "manifest:x", ""] {
            assert_eq!(UploadId::of_manifest(other), None, "{other}");
        }
    }

    #[test]
    fn each_attempt_has_its_request() {
        let attempt = |upload, number| {
            let ns = NamespaceId(1024);
            Attempt { upload: UploadId(upload), ns, principal: 7, number, destination: None }.request()
        };
        assert_eq!(attempt(2000, 0), attempt(2000, 0));
        assert_ne!(attempt(2000, 0), attempt(2000, 1));
        assert_ne!(attempt(2000, 0), attempt(2001, 0));
    }
}
