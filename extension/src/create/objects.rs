//! put_object.

use std::ffi::CStr;

use pgrx::{JsonB, prelude::*};

use super::{
    BOOL, Call, Columns, Element, INT4, INT8, JSONB, Rows, Seen, TEXT, TIME, claim_many, meta, transaction_start,
};
use crate::{
    distribution::is_distributed,
    kept::{Kept, argument},
};

/// From so many on, elements of a batch are claimed at once rather than one after the other.
const AT_ONCE_MIN: usize = 4;

const COLUMNS: [&CStr; 17] = [
    c"pid",
    c"name",
    c"ts",
    c"ns",
    c"id",
    c"owner",
    c"grp",
    c"mode",
    c"version",
    c"size",
    c"synthetic",
    c"etag",
    c"content_type",
    c"user_metadata",
    c"locator",
    c"created",
    c"modified",
];

thread_local! {
    static INSERT: Kept = const { Kept::new(
        c"INSERT INTO mantle.meta (pid, name, ts, ns, id, owner, grp, mode, version, size, synthetic, etag, content_type,
                                   user_metadata, locator, created, modified)
          VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
        &[INT8, TEXT, INT8, INT8, INT8, INT4, INT4, INT4, INT8, INT8, BOOL, TEXT, TEXT, JSONB, TEXT, TIME, TIME]) };
}

/// An object that may be new.
struct NewObject<'a> {
    at: usize,
    entry: Element<'a>,
    size: i64,
    etag: Option<&'a str>,
    content_type: Option<&'a str>,
    user_metadata: Option<JsonB>,
    locator: Option<&'a str>,
}

impl NewObject<'_> {
    fn insert_into(self, rows: &mut Rows<{ COLUMNS.len() }>) {
        let e = &self.entry;
        rows.insert([
            argument(e.pid),
            argument(e.name),
            argument(0_i64),
            argument(e.ns),
            argument(e.id),
            argument(e.owner),
            argument(e.grp),
            argument(e.mode),
            argument(1_i64),
            argument(self.size),
            argument(false),
            argument(self.etag),
            argument(self.content_type),
            argument(self.user_metadata),
            argument(self.locator),
            transaction_start(),
            transaction_start(),
        ]);
    }
}

/// Claims all with one statement; keeps those that are made.
fn claim_at_once(call: &mut Call, objects: &mut Vec<NewObject<'_>>) {
    let (meta, mut seen) = (meta(), Seen::default());
    objects.retain(|object| {
        let e = &object.entry;
        seen.is_first(e) && call.is_sound(e) && call.is_free(meta.as_ref(), e)
    });
    if !objects.is_empty() {
        let claimed = claim_many(&objects.iter().map(|object| &object.entry).collect::<Vec<_>>(), "put_object");
        objects.retain(|object| claimed.contains(&object.entry.id));
    }
}

/// Makes the new objects of a batch; answers the numbers of those made, from 1. If that is all, it has also added to the
/// counts; else that is left to the caller, who adds what the others need.
/// Leases: none, or each's. `None`, and nothing was done: the arrays are not equally long, or, as PostgreSQL has it of such
/// functions, one is NULL.
#[pg_extern(volatile)]
#[allow(clippy::too_many_arguments)]
fn put_new_object(
    principal: Array<i32>,
    ns: Array<i64>,
    pid: Array<i64>,
    name: Array<&str>,
    id: Array<i64>,
    owner: Array<i32>,
    grp: Array<i32>,
    mode: Array<i32>,
    size: Array<i64>,
    etag: Array<&str>,
    content_type: Array<&str>,
    user_metadata: Array<JsonB>,
    locator: Array<&str>,
    condition: Array<&str>,
    request: Array<pgrx::Uuid>,
    hash: Array<i64>,
    lease: Array<&str>,
) -> Option<Vec<i32>> {
    let columns = Columns {
        principal: principal.iter().collect(),
        ns: ns.iter().collect(),
        pid: pid.iter().collect(),
        name: name.iter().collect(),
        id: id.iter().collect(),
        owner: owner.iter().collect(),
        grp: grp.iter().collect(),
        mode: mode.iter().collect(),
        request: request.iter().collect(),
        hash: hash.iter().collect(),
        lease: lease.iter().collect(),
    };
    if !columns.are_even([
        size.len(),
        etag.len(),
        content_type.len(),
        user_metadata.len(),
        locator.len(),
        condition.len(),
    ]) {
        return None;
    }
    let (mut etag, mut content_type, mut locator) = (etag.iter(), content_type.iter(), locator.iter());
    let (mut user_metadata, mut condition) = (user_metadata.iter(), condition.iter());
    let mut objects = Vec::with_capacity(columns.name.len());
    for (at, size) in size.iter().enumerate() {
        let (etag, content_type, locator) =
            (etag.next().flatten(), content_type.next().flatten(), locator.next().flatten());
        let (user_metadata, condition) = (user_metadata.next().flatten(), condition.next().flatten());
        let Some((entry, size)) = columns.element(at).zip(size) else { continue };
        if matches!(condition, None | Some("*absent")) && size >= 0 && !entry.name.ends_with('/') {
            objects.push(NewObject { at, entry, size, etag, content_type, user_metadata, locator });
        }
    }
    let mut call = Call::default();
    Spi::connect_mut(|_| {
        let mut rows = Rows::new(COLUMNS, &INSERT);
        let is_claimed = objects.len() >= AT_ONCE_MIN && !is_distributed();
        if is_claimed {
            claim_at_once(&mut call, &mut objects);
        }
        for object in objects {
            if is_claimed || call.claim(meta().as_ref(), &object.entry, "put_object") {
                call.count(object.at, &object.entry, 0, object.size);
                object.insert_into(&mut rows);
            }
        }
        if call.made.len() == name.len() {
            rows.count(&call.deltas);
        }
    });
    Some(call.made)
}
