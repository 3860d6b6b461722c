//! Converts the parallel arrays that a verb is called with into elements.

use mantle_types::limits::{ID_MIN, MODE_MAX};
use pgrx::{pg_sys, prelude::*};

use crate::{
    postgres::call::Arguments,
    steps::{batch::shape_error, name::stem},
};

pub const INT4S: pg_sys::Oid = pg_sys::INT4ARRAYOID;
pub const INT8S: pg_sys::Oid = pg_sys::INT8ARRAYOID;
pub const TEXTS: pg_sys::Oid = pg_sys::TEXTARRAYOID;
pub const UUIDS: pg_sys::Oid = pg_sys::UUIDARRAYOID;
pub const JSONBS: pg_sys::Oid = pg_sys::JSONBARRAYOID;
pub const TEXT: pg_sys::Oid = pg_sys::TEXTOID;

/// The arrays that both verbs have.
pub struct Columns<'a> {
    principal: Vec<Option<i32>>,
    ns: Vec<Option<i64>>,
    pid: Vec<Option<i64>>,
    pub name: Vec<Option<&'a str>>,
    id: Vec<Option<i64>>,
    owner: Vec<Option<i32>>,
    grp: Vec<Option<i32>>,
    mode: Vec<Option<i32>>,
    request: Vec<Option<pgrx::Uuid>>,
    hash: Vec<Option<i64>>,
    /// Empty if all ids were resolved in this transaction.
    lease: Vec<Option<&'a str>>,
}

/// The text arrays that [`Columns`] borrows from.
pub struct Texts<'a> {
    name: Array<'a, &'a str>,
    lease: Option<Array<'a, &'a str>>,
}

impl Texts<'_> {
    /// `None` if the names are NULL.
    pub fn of(call: &Arguments, lease_at: usize) -> Option<Self> {
        Some(Self { name: call.get(3)?, lease: call.get(lease_at) })
    }
}

/// An element without forbidden NULLs, and with every number in range.
pub struct Element<'a> {
    pub principal: i32,
    pub ns: i64,
    pub pid: i64,
    /// With the slash of a directory.
    pub name: &'a str,
    pub id: i64,
    pub owner: i32,
    pub grp: i32,
    pub mode: i32,
    pub request: pgrx::Uuid,
    pub hash: i64,
    pub lease: Option<&'a str>,
}

impl<'a> Element<'a> {
    /// The name without its slash.
    pub fn stem(&self) -> &'a str {
        stem(self.name)
    }
}

impl<'a> Columns<'a> {
    /// Principals to modes are the first arguments of a verb; the hash follows the request. `None` if an array is NULL.
    pub fn of(call: &Arguments, texts: &'a Texts<'_>, request_at: usize) -> Option<Self> {
        Some(Self {
            principal: call.get(0)?,
            ns: call.get(1)?,
            pid: call.get(2)?,
            name: texts.name.iter().collect(),
            id: call.get(4)?,
            owner: call.get(5)?,
            grp: call.get(6)?,
            mode: call.get(7)?,
            request: call.get(request_at)?,
            hash: call.get(request_at + 1)?,
            lease: texts.lease.iter().flat_map(|leases| leases.iter()).collect(),
        })
    }

    /// Whether all arrays, including the verb's `others`, are as long as the names, and not too long. Leases may be
    /// missing.
    pub fn have_equal_lengths<const N: usize>(&self, others: [usize; N]) -> bool {
        let lengths = [
            self.principal.len(),
            self.ns.len(),
            self.pid.len(),
            self.id.len(),
            self.owner.len(),
            self.grp.len(),
            self.mode.len(),
            self.request.len(),
            self.hash.len(),
        ];
        let leases = Some(self.lease.len()).filter(|leases| *leases > 0);
        shape_error(self.name.len(), lengths.into_iter().chain(others).chain(leases)).is_none()
    }

    pub fn element(&self, at: usize) -> Option<Element<'a>> {
        let element = Element {
            principal: self.principal[at]?,
            ns: self.ns[at]?,
            pid: self.pid[at]?,
            name: self.name[at]?,
            id: self.id[at]?,
            owner: self.owner[at]?,
            grp: self.grp[at]?,
            mode: self.mode[at]?,
            request: self.request[at]?,
            hash: self.hash[at].unwrap_or(0),
            lease: self.lease.get(at).copied().flatten(),
        };
        let in_range = element.pid >= ID_MIN && element.owner >= 0 && element.grp >= 0;
        (in_range && (0..=MODE_MAX as i32).contains(&element.mode)).then_some(element)
    }
}
