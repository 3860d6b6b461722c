//! Reads columns of rows into the types of the use cases.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use mantle_types::{Caller, EntryId, ErrorCode, Permission, Result};
use tokio_postgres::{Row, types::FromSql};

use super::{metadata::Metadata, record::Fields};

/// A column that is never NULL.
pub fn get<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> Result<T> {
    row.try_get(column).map_err(|cause| unreadable(column, &cause))
}

/// A column that may be NULL, or that the statement does not select.
pub fn get_opt<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> Result<Option<T>> {
    match row.columns().iter().position(|c| c.name() == column) {
        None => Ok(None),
        Some(i) => row.try_get(i).map_err(|cause| unreadable(column, &cause)),
    }
}

impl Fields for Row {
    fn field<'a, T: FromSql<'a>>(&'a self, at: usize) -> Result<T> {
        let name = || self.columns().get(at).map_or("a column that is missing", |column| column.name());
        self.try_get(at).map_err(|cause| unreadable(name(), &cause))
    }
}

fn unreadable(column: &str, cause: &tokio_postgres::Error) -> mantle_types::Error {
    tracing::error!(column, %cause, "the database answered something unexpected");
    ErrorCode::Internal.into()
}

/// The `code` column: NULL is success.
pub fn code(row: &Row) -> Result<Option<ErrorCode>> {
    code_of_state(get_opt(row, "code")?)
}

/// The code of a SQLSTATE of ours; NULL is success.
pub fn code_of_state(state: Option<&str>) -> Result<Option<ErrorCode>> {
    let Some(state) = state else { return Ok(None) };
    let code = ErrorCode::from_sqlstate(state);
    if code.is_none() {
        tracing::error!(state, "the database answered an unknown code");
    }
    code.ok_or_else(|| ErrorCode::Internal.into()).map(Some)
}

/// The owner, group and mode columns.
pub fn permission(row: &Row) -> Result<Permission> {
    Ok(Permission {
        owner: get_opt::<i32>(row, "owner")?.unwrap_or_default() as u32,
        group: get_opt::<i32>(row, "grp")?.unwrap_or_default() as u32,
        mode: get_opt::<i32>(row, "mode")?.unwrap_or_default() as u16,
    })
}

/// Answer of a mutation, with the error code of a refusal.
pub type Coded = (Option<ErrorCode>, Written);

/// The code of a refusal, or of a failed call.
pub fn code_of(answer: &Result<Coded>) -> Option<ErrorCode> {
    answer.as_ref().map_or_else(|error| Some(error.code()), |(code, _)| *code)
}

pub fn accepted((code, written): Coded) -> Result<Written> {
    code.map_or(Ok(written), |code| Err(code.into()))
}

#[derive(Clone, Debug, Default)]
pub struct Written {
    /// The entry's id; with `already_exists`, the id of the one that exists.
    pub id: EntryId,
    /// The version that it got, where the statement answers it: `mantle.replay` does.
    pub version: Option<i64>,
    /// This is the recorded answer of an earlier attempt.
    pub replayed: bool,
    /// Locator of bytes that no row names any more.
    pub old_locator: Option<String>,
    /// Owner of an existing namespace.
    pub owner: Option<u32>,
}

impl Written {
    pub fn read(row: &Row) -> Result<Coded> {
        let written = Self {
            id: get_opt::<i64>(row, "id")?.unwrap_or_default().into(),
            version: get_opt(row, "version")?,
            replayed: get_opt(row, "replayed")?.unwrap_or_default(),
            old_locator: get_opt(row, "old_locator")?,
            owner: get_opt::<i32>(row, "owner")?.map(|owner| owner as u32),
        };
        Ok((code(row)?, written))
    }

    /// Reads an answer; a code is an error.
    pub fn expect(row: &Row) -> Result<Self> {
        accepted(Self::read(row)?)
    }
}

/// MD5 of no bytes: the etag of an explicit directory.
pub const EMPTY_MD5: &str = "d41d8cd98f00b204e9800998ecf8427e";

#[derive(Clone, Debug)]
pub struct Entry {
    /// Name within its directory (or key below the listed one); a directory's ends in a slash.
    pub name: String,
    /// Permanent; a rename keeps it.
    pub id: EntryId,
    pub permission: Permission,
    pub version: i64,
    /// The directory was made by request; it stays when it is empty.
    pub explicit: bool,
    pub size: u64,
    /// The import made up the size.
    pub synthetic: bool,
    /// MD5 of the bytes in hexadecimal.
    pub etag: Option<String>,
    pub content_type: Option<String>,
    pub metadata: Option<Metadata>,
    /// Where the bytes are; `None` for imported entries.
    pub locator: Option<String>,
    /// `None` for imported entries without a time.
    pub created: Option<DateTime<Utc>>,
    pub modified: Option<DateTime<Utc>>,
    /// Whoever it is shown to may not read it.
    pub is_closed: bool,
    /// Its bytes, if they are inside PostgreSQL and were asked for.
    pub inline: Option<Bytes>,
}

impl Entry {
    /// Reads the columns that `mantle.stat` and `mantle.list` answer of an entry, from column `first` on. They are read by
    /// their places: a listing has thousands.
    pub fn read(row: &impl Fields, first: usize) -> Result<Self> {
        let number = |at: usize| row.field::<Option<i32>>(first + at).map(Option::unwrap_or_default);
        Ok(Self {
            name: row.field(first)?,
            id: row.field::<i64>(first + 1)?.into(),
            permission: Permission { owner: number(2)? as u32, group: number(3)? as u32, mode: number(4)? as u16 },
            version: row.field::<Option<i64>>(first + 5)?.unwrap_or_default(),
            explicit: row.field::<Option<bool>>(first + 6)?.unwrap_or_default(),
            size: row.field::<Option<i64>>(first + 7)?.unwrap_or_default() as u64,
            synthetic: row.field::<Option<bool>>(first + 8)?.unwrap_or_default(),
            etag: row.field(first + 9)?,
            content_type: row.field(first + 10)?,
            metadata: row.field(first + 11)?,
            locator: row.field(first + 12)?,
            created: row.field(first + 13)?,
            modified: row.field(first + 14)?,
            is_closed: false,
            inline: None,
        })
    }

    /// What is kept with the entry: the user's metadata, and what begins with a colon.
    pub fn user_metadata(&self) -> Option<&serde_json::Value> {
        self.metadata.as_ref()?.document()
    }

    pub fn is_directory(&self) -> bool {
        self.name.ends_with('/')
    }

    /// The entry as a listing or a stat shows it. As with `ls -l`, whoever may search the directory sees kind, size, times,
    /// owner, group and mode; what says something about the bytes takes the permission to read them.
    pub fn shown_to(mut self, caller: &Caller) -> Self {
        if !self.permission.may_read(caller) {
            (self.etag, self.content_type, self.metadata, self.is_closed) = (None, None, None, true);
        }
        self
    }

    /// The etag of what S3 shows: a directory has no bytes. `None` for an imported object, whose bytes are not here, and for
    /// an entry that the caller may not read.
    pub fn md5(&self) -> Option<&str> {
        if self.is_directory() && !self.is_closed { Some(EMPTY_MD5) } else { self.etag.as_deref() }
    }

    /// How many bytes S3 shows.
    pub fn length(&self) -> u64 {
        if self.is_directory() { 0 } else { self.size }
    }

    /// Time of the last change or of the creation, if known.
    pub fn last_modified(&self) -> Option<DateTime<Utc>> {
        self.modified.or(self.created)
    }
}
