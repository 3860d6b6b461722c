//! The error table: one row per error. SQLSTATE, HTTP status, S3 code, retry advice and `docs/errors.md` come from it. SQL
//! functions raise or return these SQLSTATEs; nothing parses message texts.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a client should do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same request will fail the same way.
    No,
    /// The same request, with the same request id, may succeed later: it was not carried out, or its id makes a second
    /// attempt harmless.
    SameRequestId,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct ErrorRow {
    pub code: ErrorCode,
    /// Stable name: `code` in problem+json, label in metrics.
    pub name: &'static str,
    /// SQLSTATE in Mantle's own class `MT`.
    pub sqlstate: &'static str,
    pub http: u16,
    /// `Code` in an S3 error document.
    pub s3: &'static str,
    pub retry: Retry,
    /// One sentence for `docs/errors.md`.
    pub meaning: &'static str,
}

macro_rules! error_table {
    ($($variant:ident $name:literal $sqlstate:literal $http:literal $s3:literal $retry:ident $meaning:literal;)*) => {
        /// Mantle's own errors; see [`ERROR_TABLE`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum ErrorCode {
            $(#[doc = $meaning] $variant,)*
        }

        /// Every error, in SQLSTATE order.
        pub const ERROR_TABLE: &[ErrorRow] = &[
            $(ErrorRow {
                code: ErrorCode::$variant, name: $name, sqlstate: $sqlstate, http: $http, s3: $s3,
                retry: Retry::$retry, meaning: $meaning,
            },)*
        ];
    };
}

error_table! {
    InvalidName "invalid_name" "MT001" 400 "InvalidArgument" No "A name is empty, `.`, `..`, or contains `/` or NUL.";
    NameTooLong "name_too_long" "MT002" 400 "KeyTooLongError" No "A name has more than 255 bytes.";
    KeyTooLong "key_too_long" "MT003" 400 "KeyTooLongError" No "A key has more than 1,024 bytes, or would have after the rename.";
    PathTooDeep "path_too_deep" "MT004" 400 "KeyTooLongError" No "A path has more than 128 components, or would have after the rename.";
    InvalidNamespaceName "invalid_namespace_name" "MT005" 400 "InvalidBucketName" No "A namespace name breaks S3's rules for bucket names.";
    InvalidArgument "invalid_argument" "MT006" 400 "InvalidArgument" No "A parameter is missing, malformed or out of range.";
    BatchTooLarge "batch_too_large" "MT007" 400 "InvalidRequest" No "A batch has more elements, or needs more latches, than allowed.";
    NotFound "not_found" "MT010" 404 "NoSuchKey" No "The entry does not exist.";
    NamespaceNotFound "namespace_not_found" "MT011" 404 "NoSuchBucket" No "The namespace does not exist.";
    AlreadyExists "already_exists" "MT012" 409 "OperationAborted" No "The entry exists already.";
    NamespaceExists "namespace_exists" "MT013" 409 "BucketAlreadyExists" No "The namespace exists already and belongs to somebody else.";
    ParentIsObject "parent_is_object" "MT014" 409 "ParentIsObject" No "A component of the path, other than the last, is an object.";
    IsDirectory "is_directory" "MT015" 409 "KeyIsDirectory" No "A directory has the name that the object would get.";
    IsObject "is_object" "MT016" 409 "KeyIsObject" No "An object has the name that the directory would get.";
    NotEmpty "not_empty" "MT017" 409 "BucketNotEmpty" No "The directory or namespace is not empty.";
    DirectoryRemoved "directory_removed" "MT018" 503 "ServiceUnavailable" SameRequestId "The directory was removed between its lookup and the change; look it up again.";
    PreconditionFailed "precondition_failed" "MT019" 412 "PreconditionFailed" No "A condition of the request does not hold, such as If-Match.";
    RequestMismatch "request_mismatch" "MT020" 422 "IdempotencyParameterMismatch" No "The request id was used before for another request.";
    RequestExpired "request_expired" "MT021" 409 "OperationAborted" No "The request id is so old that the answer to it may be gone.";
    RenameLoop "rename_loop" "MT022" 409 "InvalidRequest" No "A directory cannot be moved into itself or below itself.";
    Locked "locked" "MT023" 503 "SlowDown" SameRequestId "Another rename holds a directory on the path.";
    StaleEpoch "stale_epoch" "MT024" 503 "ServiceUnavailable" SameRequestId "The index was rebuilt since the rename was prepared.";
    AttemptSuperseded "attempt_superseded" "MT025" 503 "ServiceUnavailable" SameRequestId "The rename's attempt was aborted or superseded; nothing was moved.";
    SourceChanged "source_changed" "MT026" 503 "ServiceUnavailable" SameRequestId "The source of the rename is no longer the entry that was locked.";
    AccessDenied "access_denied" "MT030" 403 "AccessDenied" No "The caller lacks a permission on the entry or on a directory above it.";
    Unauthenticated "unauthenticated" "MT031" 401 "AccessDenied" No "The request carries no valid credentials.";
    NoData "no_data" "MT032" 403 "InvalidObjectState" No "The entry was imported without bytes; there is nothing to read.";
    InvalidRange "invalid_range" "MT033" 416 "InvalidRange" No "The range lies outside the object.";
    NotImplemented "not_implemented" "MT034" 501 "NotImplemented" No "This call is not offered.";
    BytesMissing "bytes_missing" "MT035" 500 "InternalError" No "The object is there, but its bytes are not: the storage has lost them.";
    StorageFull "storage_full" "MT036" 507 "InsufficientStorage" SameRequestId "The storage of the objects' bytes is full; nothing was stored.";
    NoSuchUpload "no_such_upload" "MT037" 404 "NoSuchUpload" No "The multipart upload does not exist, or was completed or aborted.";
    InvalidPart "invalid_part" "MT038" 400 "InvalidPart" No "A part of a multipart upload is not there, or has another etag than given.";
    UploadBusy "upload_busy" "MT039" 409 "OperationAborted" SameRequestId "The multipart upload is being completed; ask again.";
    InvalidId "invalid_id" "MT040" 500 "InternalError" No "An id lies outside every recorded block.";
    WrongIsolation "wrong_isolation" "MT041" 500 "InternalError" No "The function runs under READ COMMITTED only.";
    WeakCommit "weak_commit" "MT042" 500 "InternalError" No "synchronous_commit is weaker than the flush that an acknowledgement needs.";
    WrongNode "wrong_node" "MT043" 503 "ServiceUnavailable" SameRequestId "The directory's shard is on another node, or moved there during the call.";
    LeaseExpired "lease_expired" "MT044" 503 "ServiceUnavailable" SameRequestId "Too much time passed between the resolution of the path and the change; resolve it again.";
    LineageChanged "lineage_changed" "MT045" 503 "ServiceUnavailable" SameRequestId "The database was promoted or restored, or the index rebuilt, after the path was resolved; resolve it again.";
    NotPrepared "not_prepared" "MT046" 503 "ServiceUnavailable" SameRequestId "The index has not prepared this change with these arguments; prepare it again.";
    TreeTooLarge "tree_too_large" "MT047" 409 "OperationAborted" No "The directory has too many directories below it; remove it in parts, or let the namespace's owner remove it.";
    StaleSegment "stale_segment" "MT048" 503 "ServiceUnavailable" SameRequestId "The bytes are in a segment of a volume whose lease does not have the epoch that was given, or has ended; nothing was stored.";
    InvalidLocator "invalid_locator" "MT049" 500 "InternalError" No "A locator of bytes in a volume names no segment and epoch, or a locator of bytes inside PostgreSQL came without the bytes.";
    NotLeader "not_leader" "MT050" 503 "ServiceUnavailable" SameRequestId "The replica that was asked is not the leader of its group.";
    IndexUnavailable "index_unavailable" "MT051" 503 "ServiceUnavailable" SameRequestId "No replica of the index answers.";
    AwaitTimeout "await_timeout" "MT052" 503 "ServiceUnavailable" SameRequestId "The change is committed, but the index did not confirm it in time.";
    UnknownOutcome "unknown_outcome" "MT053" 503 "ServiceUnavailable" SameRequestId "The connection broke during the commit, or the answer did not come in time; nobody knows whether the change was made.";
    DatabaseUnavailable "database_unavailable" "MT054" 503 "ServiceUnavailable" SameRequestId "PostgreSQL does not answer, or refused for a temporary reason.";
    UnknownGroup "unknown_group" "MT055" 503 "ServiceUnavailable" SameRequestId "The IndexNode that was asked has no replica of the index group.";
    NotServed "not_served" "MT056" 503 "ServiceUnavailable" SameRequestId "The index group that was asked does not serve the namespace, or not yet; another group does, or will soon.";
    BytesUnavailable "bytes_unavailable" "MT057" 503 "ServiceUnavailable" SameRequestId "The bucket of the objects' bytes does not answer or refuses the gateway; or this gateway has not mounted its volume, or cannot read the volume of another gateway; or PostgreSQL does not answer while the volume needs more room, or new leases of its segments.";
    NoSuchVolume "no_such_volume" "MT058" 404 "InternalError" No "The volume is not registered.";
    VolumeSuperseded "volume_superseded" "MT059" 409 "InternalError" No "The volume was mounted again later: this is an old copy of it, or an older mount.";
    BytesCorrupt "bytes_corrupt" "MT060" 500 "InternalError" No "The object's bytes are not those that were written: the storage has damaged them.";
    Internal "internal" "MT099" 500 "InternalError" No "A fault of the service; its log has the cause.";
}

impl ErrorCode {
    /// The row of this code.
    pub fn row(self) -> &'static ErrorRow {
        &ERROR_TABLE[self as usize]
    }

    /// The code of a SQLSTATE; `None` for a SQLSTATE of PostgreSQL itself.
    pub fn from_sqlstate(sqlstate: &str) -> Option<Self> {
        ERROR_TABLE.iter().find(|row| row.sqlstate == sqlstate).map(|row| row.code)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
    }
}

/// A Mantle error: its code and a sentence for the client. A cause that the client must not see goes to the log instead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Error {
    code: ErrorCode,
    detail: String,
}

/// Result with a Mantle [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// `detail` is shown to the client.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }

    /// Which error this is.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// The sentence for the client.
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl From<ErrorCode> for Error {
    fn from(code: ErrorCode) -> Self {
        Self::new(code, code.row().meaning)
    }
}

/// The table as Markdown: the text of `docs/errors.md`, which a test compares.
pub fn error_page() -> String {
    let mut page = String::from(
        "# Errors\n\nGenerated from `indexnode/types/src/error.rs`; do not edit. REST answers carry the name as `code` in \
         problem+json, S3 answers the S3 code, SQL the SQLSTATE.\n\n| name | SQLSTATE | HTTP | S3 code | retry | meaning |\n\
         |---|---|---|---|---|---|\n",
    );
    for row in ERROR_TABLE {
        let retry = match row.retry {
            Retry::No => "no",
            Retry::SameRequestId => "same request id",
        };
        page.push_str(&format!(
            "| `{}` | {} | {} | `{}` | {retry} | {} |\n",
            row.name, row.sqlstate, row.http, row.s3, row.meaning
        ));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_ordered_and_indexed_by_code() {
        for (i, row) in ERROR_TABLE.iter().enumerate() {
            assert_eq!(row.code as usize, i);
            assert_eq!(ErrorCode::from_sqlstate(row.sqlstate), Some(row.code));
        }
        assert!(ERROR_TABLE.windows(2).all(|w| w[0].sqlstate < w[1].sqlstate));
    }

    #[test]
    fn documentation_page_is_current() {
        crate::pages::assert_page("errors.md", &error_page());
    }
}
