//! The short way of mkdir and put_object: new entries against which nothing speaks, one after the other. What exists, is
//! refused, or was answered before is left to the way for all cases (`sql/verbs/mkdir.sql`, `put_object.sql`), which finds
//! out why. The caller has taken the latches, so what is read of a name here stays until the commit.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashSet},
};

use mantle_types::{ErrorCode, name::check_name};
use pgrx::{JsonB, pg_sys, prelude::*};

use crate::{
    counts::Delta,
    distribution::is_distributed,
    guard::{Fault, sqlstate},
    import_plan::FIRST_ID,
    kept::{Kept, argument},
    stream::{NewDirectory, emit_new},
};

const INT4: pg_sys::Oid = pg_sys::INT4OID;
const INT8: pg_sys::Oid = pg_sys::INT8OID;
const TEXT: pg_sys::Oid = pg_sys::TEXTOID;
const UUID: pg_sys::Oid = pg_sys::UUIDOID;
const BOOL: pg_sys::Oid = pg_sys::BOOLOID;
const JSONB: pg_sys::Oid = pg_sys::JSONBOID;

thread_local! {
    // The block that an id is of, if any; not one of this transaction, which may yet be rolled back.
    static BLOCK: Kept = const { Kept::new(
        c"SELECT b.first_id, b.last_id, b.allocated < now() FROM mantle.id_blocks b
           WHERE b.first_id <= $1 ORDER BY b.first_id DESC LIMIT 1", &[INT8]) };
    static NAMESPACE: Kept = const { Kept::new(c"SELECT FROM mantle.namespaces n WHERE n.ns = $1", &[INT8]) };
    // A tombstone of the directory (PROTOCOLS 7), or an entry of the name, be it a directory's or an object's (PROTOCOLS 29).
    // One probe of the whole key each: before the table's first ANALYZE `name IN (…)` is planned as a filter on all entries of
    // the directory, and creates in a hot one ran at a third of their rate. coalesce: not by the index of tombstones.
    static TAKEN: Kept = const { Kept::new(
        c"SELECT WHERE EXISTS (SELECT FROM mantle.meta m WHERE m.pid = $1 AND m.name = '/_ATTR' AND m.ts = 0 AND coalesce(m.removed, false))
             OR EXISTS (SELECT FROM mantle.meta m WHERE m.pid = $1 AND m.name = $2 AND m.ts = 0)
             OR EXISTS (SELECT FROM mantle.meta m WHERE m.pid = $1 AND m.name = $3 AND m.ts = 0)",
        &[INT8, TEXT, TEXT]) };
    // On Citus one of them after the other.
    static REMOVED: Kept = const { Kept::new(
        c"SELECT FROM mantle.meta m WHERE m.pid = $1 AND m.name = '/_ATTR' AND m.ts = 0 AND coalesce(m.removed, false)", &[INT8]) };
    static ENTRY: Kept = const { Kept::new(
        c"SELECT FROM mantle.meta m WHERE m.pid = $1 AND m.name = $2 AND m.ts = 0", &[INT8, TEXT]) };
    static CLAIM: Kept = const { Kept::new(
        c"INSERT INTO mantle.requests (ns, principal, request_id, request_hash, verb, pid, id, version)
          VALUES ($1, $2, $3, $4, $5, $6, $7, 1) ON CONFLICT DO NOTHING",
        &[INT8, INT4, UUID, INT8, TEXT, INT8, INT8]) };
    static INSERT_DIRECTORY: Kept = const { Kept::new(
        c"INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, explicit, user_metadata, created)
          VALUES ($1, $2, $3, $4, $5, $6, $7, 1, $8, $9, now())",
        &[INT8, TEXT, INT8, INT8, INT4, INT4, INT4, BOOL, JSONB]) };
    // For an object that may never come: its PUT can fail after this.
    static QUEUE: Kept = const { Kept::new(c"SELECT mantle.queue_pruning($1, $2)", &[INT8, INT8]) };
    static INSERT_OBJECT: Kept = const { Kept::new(
        c"INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, size, synthetic, etag, content_type,
                                   user_metadata, locator, created, modified)
          VALUES ($1, $2, $3, $4, $5, $6, $7, 1, $8, false, $9, $10, $11, $12, now(), now())",
        &[INT8, TEXT, INT8, INT8, INT4, INT4, INT4, INT8, TEXT, TEXT, JSONB, TEXT]) };
    /// Blocks that were found recorded. Rows of id_blocks are never changed or removed.
    static BLOCKS: RefCell<Vec<(i64, i64)>> = const { RefCell::new(Vec::new()) };
}

/// Most blocks remembered: an id block serves a gateway for thousands of entries.
const BLOCKS_KEPT: usize = 16;

/// What elements of both verbs have.
struct Columns<'a> {
    principal: Vec<Option<i32>>,
    ns: Vec<Option<i64>>,
    pid: Vec<Option<i64>>,
    name: Vec<Option<&'a str>>,
    id: Vec<Option<i64>>,
    owner: Vec<Option<i32>>,
    grp: Vec<Option<i32>>,
    mode: Vec<Option<i32>>,
    request: Vec<Option<pgrx::Uuid>>,
    hash: Vec<Option<i64>>,
}

/// An element of which nothing is NULL that may not be, and nothing out of range.
struct Element<'a> {
    principal: i32,
    ns: i64,
    pid: i64,
    /// A directory's with its slash.
    name: &'a str,
    id: i64,
    owner: i32,
    grp: i32,
    mode: i32,
    request: pgrx::Uuid,
    hash: i64,
}

impl<'a> Columns<'a> {
    fn element(&self, at: usize) -> Option<Element<'a>> {
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
        };
        let in_range = element.pid >= FIRST_ID && element.owner >= 0 && element.grp >= 0;
        (in_range && (0..=0o777).contains(&element.mode)).then_some(element)
    }
}

/// What a call has found out, and done, so far.
#[derive(Default)]
struct Call {
    namespaces: HashSet<i64>,
    /// Numbers of the elements made, from 1.
    made: Vec<i32>,
    deltas: BTreeMap<i64, Delta>,
}

impl Call {
    /// Does nothing speak against this new entry? If so its request is recorded.
    fn claim(&mut self, element: &Element<'_>, verb: &str) -> bool {
        let name = element.name.strip_suffix('/').unwrap_or(element.name);
        if check_name(name).is_err() || !is_recorded(element.id) {
            return false;
        }
        if !self.namespaces.contains(&element.ns) {
            if NAMESPACE.with(|s| s.run(&[argument(element.ns)])) == 0 {
                return false;
            }
            self.namespaces.insert(element.ns);
        }
        !is_taken(element.pid, name)
            && CLAIM.with(|s| {
                s.run(&[
                    argument(element.ns),
                    argument(element.principal),
                    argument(element.request),
                    argument(element.hash),
                    argument(verb),
                    argument(element.pid),
                    argument(element.id),
                ])
            }) == 1
    }

    fn count(&mut self, at: usize, element: &Element<'_>, subdirectories: i64, bytes: i64) {
        self.made.push(at as i32 + 1);
        let delta = self.deltas.entry(element.pid).or_insert(Delta { ns: element.ns, ..Delta::default() });
        delta.entries += 1;
        delta.subdirectories += subdirectories;
        delta.bytes += bytes;
    }
}

/// Has the directory a tombstone, or an entry of this name, with a slash or without? Within `Spi::connect` only.
fn is_taken(pid: i64, name: &str) -> bool {
    let (pid, object, directory) = (argument(pid), argument(name), argument(format!("{name}/")));
    if !is_distributed() {
        return TAKEN.with(|s| s.run(&[pid, object, directory])) > 0;
    }
    REMOVED.with(|s| s.run(&[pid])) > 0
        || [object, directory].into_iter().any(|name| ENTRY.with(|s| s.run(&[pid, name])) > 0)
}

/// Is an id of a recorded block (PROTOCOLS 9)? Within `Spi::connect` only.
fn is_recorded(id: i64) -> bool {
    let of = |blocks: &Vec<(i64, i64)>| blocks.iter().any(|(first, last)| (*first..=*last).contains(&id));
    if BLOCKS.with_borrow(of) {
        return true;
    }
    let found = BLOCK.with(|s| {
        s.rows(&[argument(id)], |row| (row.get::<i64>(1), row.get::<i64>(2), row.get::<bool>(3).unwrap_or(false)))
    });
    match found[..] {
        [(Some(first), Some(last), lasting)] if (first..=last).contains(&id) => {
            if lasting {
                BLOCKS.with_borrow_mut(|blocks| {
                    blocks.truncate(BLOCKS_KEPT - 1);
                    blocks.insert(0, (first, last));
                });
            }
            true
        }
        _ => false,
    }
}

/// Forgets what was found of other tables. Called when the MetaTable's definition changed, or it was dropped.
pub fn forget() {
    BLOCKS.with_borrow_mut(Vec::clear);
}

/// The SQLSTATE of an id that no recorded block has, or NULL.
#[pg_extern(volatile)]
fn id_fault(id: Option<i64>) -> Fault {
    let recorded = id.is_some_and(|id| Spi::connect_mut(|_| is_recorded(id)));
    (!recorded).then(|| sqlstate(ErrorCode::InvalidId))
}

/// Makes the new directories of a batch; answers the numbers of those made, from 1. If that is all, it has also added to
/// the counts and emitted the message; else that is left to the caller, who adds what the others need.
#[pg_extern(volatile)]
#[allow(clippy::too_many_arguments)]
fn mkdir_new(
    principal: Array<i32>,
    ns: Array<i64>,
    pid: Array<i64>,
    name: Array<&str>,
    id: Array<i64>,
    owner: Array<i32>,
    grp: Array<i32>,
    mode: Array<i32>,
    explicit: Array<bool>,
    user_metadata: Array<JsonB>,
    request: Array<pgrx::Uuid>,
    hash: Array<i64>,
) -> Vec<i32> {
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
    };
    let mut call = Call::default();
    let mut made = Vec::new();
    Spi::connect_mut(|_| {
        for (at, (explicit, user_metadata)) in explicit.iter().zip(user_metadata.iter()).enumerate() {
            let Some((e, explicit)) = columns.element(at).zip(explicit) else { continue };
            if !e.name.ends_with('/') || !call.claim(&e, "mkdir") {
                continue;
            }
            INSERT_DIRECTORY.with(|s| {
                s.run(&[
                    argument(e.pid),
                    argument(e.name),
                    argument(e.ns),
                    argument(e.id),
                    argument(e.owner),
                    argument(e.grp),
                    argument(e.mode),
                    argument(explicit),
                    argument(user_metadata),
                ])
            });
            if !explicit {
                QUEUE.with(|s| s.run(&[argument(e.pid), argument(e.id)]));
            }
            call.count(at, &e, 1, 0);
            made.push(e);
        }
        if call.made.len() == columns.name.len() {
            call.deltas.iter().for_each(|(pid, delta)| delta.add_to(*pid));
            emit_new(made.iter().map(|e| NewDirectory {
                ns: e.ns,
                pid: e.pid,
                name: e.name,
                id: e.id,
                owner: e.owner,
                grp: e.grp,
                mode: e.mode,
                principal: e.principal,
                request: e.request,
            }));
        }
    });
    call.made
}

/// Makes the new objects of a batch; answers the numbers of those made, from 1. If that is all, it has also added to the
/// counts; else that is left to the caller, who adds what the others need.
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
) -> Vec<i32> {
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
    };
    let (mut etag, mut content_type, mut locator) = (etag.iter(), content_type.iter(), locator.iter());
    let (mut user_metadata, mut condition) = (user_metadata.iter(), condition.iter());
    let mut call = Call::default();
    Spi::connect_mut(|_| {
        for (at, size) in size.iter().enumerate() {
            let (etag, content_type, locator) =
                (etag.next().flatten(), content_type.next().flatten(), locator.next().flatten());
            let (user_metadata, condition) = (user_metadata.next().flatten(), condition.next().flatten());
            let Some((e, size)) = columns.element(at).zip(size) else { continue };
            let may_be_new = matches!(condition, None | Some("*absent")) && size >= 0 && !e.name.ends_with('/');
            if !may_be_new || !call.claim(&e, "put_object") {
                continue;
            }
            INSERT_OBJECT.with(|s| {
                s.run(&[
                    argument(e.pid),
                    argument(e.name),
                    argument(e.ns),
                    argument(e.id),
                    argument(e.owner),
                    argument(e.grp),
                    argument(e.mode),
                    argument(size),
                    argument(etag),
                    argument(content_type),
                    argument(user_metadata),
                    argument(locator),
                ])
            });
            call.count(at, &e, 0, size);
        }
        if call.made.len() == columns.name.len() {
            call.deltas.iter().for_each(|(pid, delta)| delta.add_to(*pid));
        }
    });
    call.made
}
