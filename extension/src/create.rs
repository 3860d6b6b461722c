//! The short way of mkdir and put_object: new entries against which nothing speaks, one after the other. What exists, is
//! refused, or was answered before is left to the way for all cases (`sql/verbs/mkdir.sql`, `put_object.sql`), which finds
//! out why. The caller has taken the latches, so what is read of a name here stays until the commit.

mod directories;
mod objects;

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashSet},
};

use mantle_types::{ErrorCode, name::check_name};
use pgrx::{pg_sys, prelude::*};

use crate::{
    counts::Delta,
    distribution::is_distributed,
    guard::{Fault, sqlstate},
    import_plan::FIRST_ID,
    kept::{Argument, Kept, argument},
};

const INT4: pg_sys::Oid = pg_sys::INT4OID;
const INT8: pg_sys::Oid = pg_sys::INT8OID;
const TEXT: pg_sys::Oid = pg_sys::TEXTOID;
const UUID: pg_sys::Oid = pg_sys::UUIDOID;
const BOOL: pg_sys::Oid = pg_sys::BOOLOID;
const JSONB: pg_sys::Oid = pg_sys::JSONBOID;
const INT4S: pg_sys::Oid = pg_sys::INT4ARRAYOID;
const INT8S: pg_sys::Oid = pg_sys::INT8ARRAYOID;
const TEXTS: pg_sys::Oid = pg_sys::TEXTARRAYOID;
const UUIDS: pg_sys::Oid = pg_sys::UUIDARRAYOID;
const JSONBS: pg_sys::Oid = pg_sys::JSONBARRAYOID;

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
    // On Citus one of them after the other: it keeps the local plans of statements on one row alone, and of no volatile
    // function (CLAIM has the time as a parameter). Any other is put into words, parsed and planned each time.
    static RECORD: Kept = const { Kept::new(
        c"SELECT m.ns, coalesce(m.removed, false) FROM mantle.meta m WHERE m.pid = $1 AND m.name = '/_ATTR' AND m.ts = 0", &[INT8]) };
    static ENTRY: Kept = const { Kept::new(
        c"SELECT FROM mantle.meta m WHERE m.pid = $1 AND m.name = $2 AND m.ts = 0", &[INT8, TEXT]) };
    static CLAIM: Kept = const { Kept::new(
        c"INSERT INTO mantle.requests (ns, principal, request_id, request_hash, verb, pid, id, version, created)
          VALUES ($1, $2, $3, $4, $5, $6, $7, 1, $8) ON CONFLICT DO NOTHING",
        &[INT8, INT4, UUID, INT8, TEXT, INT8, INT8, pg_sys::TIMESTAMPTZOID]) };
    // As TAKEN and CLAIM, for many at once. Names without a slash. OFFSET 0: a probe of the whole key each, no join.
    static CLAIM_MANY: Kept = const { Kept::new(
        c"INSERT INTO mantle.requests (ns, principal, request_id, request_hash, verb, pid, id, version)
          SELECT u.ns, u.principal, u.request, u.hash, $1, u.pid, u.id, 1
            FROM unnest($2, $3, $4, $5, $6, $7, $8) AS u(ns, principal, request, hash, pid, name, id)
           WHERE NOT EXISTS (SELECT FROM mantle.meta m WHERE m.pid = u.pid AND m.name = '/_ATTR' AND m.ts = 0
                                AND coalesce(m.removed, false) OFFSET 0)
             AND NOT EXISTS (SELECT FROM mantle.meta m WHERE m.pid = u.pid AND m.name = u.name AND m.ts = 0 OFFSET 0)
             AND NOT EXISTS (SELECT FROM mantle.meta m WHERE m.pid = u.pid AND m.name = u.name || '/' AND m.ts = 0 OFFSET 0)
              ON CONFLICT DO NOTHING RETURNING id",
        &[TEXT, INT8S, INT4S, UUIDS, INT8S, INT8S, TEXTS, INT8S]) };
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

impl<'a> Element<'a> {
    /// The name without its slash.
    fn stem(&self) -> &'a str {
        self.name.strip_suffix('/').unwrap_or(self.name)
    }
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
    /// Citus: directories without a tombstone; the latch keeps them so.
    live: HashSet<i64>,
    /// Numbers of the elements made, from 1.
    made: Vec<i32>,
    deltas: BTreeMap<i64, Delta>,
}

impl Call {
    /// Are name, id and namespace good?
    fn is_sound(&mut self, element: &Element<'_>) -> bool {
        if check_name(element.stem()).is_err() || !is_recorded(element.id) {
            return false;
        }
        if !self.namespaces.contains(&element.ns) {
            if NAMESPACE.with(|s| s.run(&[argument(element.ns)])) == 0 {
                return false;
            }
            self.namespaces.insert(element.ns);
        }
        true
    }

    /// Citus: has the directory no tombstone? Its attribute record, if there is one, also tells that its namespace exists:
    /// removing that leaves tombstones. A reference table costs as much to ask as three probes.
    fn is_live(&mut self, pid: i64) -> bool {
        if self.live.contains(&pid) {
            return true;
        }
        let found = RECORD.with(|s| s.rows(&[argument(pid)], |row| (row.get::<i64>(1), row.get::<bool>(2))));
        if let [(ns, removed)] = found[..] {
            if removed == Some(true) {
                return false;
            }
            self.namespaces.extend(ns);
        }
        self.live.insert(pid)
    }

    /// Does nothing speak against this new entry? If so its request is recorded.
    fn claim(&mut self, element: &Element<'_>, verb: &str) -> bool {
        (!is_distributed() || self.is_live(element.pid))
            && self.is_sound(element)
            && !is_taken(element.pid, element.stem())
            && CLAIM.with(|s| {
                s.run(&[
                    argument(element.ns),
                    argument(element.principal),
                    argument(element.request),
                    argument(element.hash),
                    argument(verb),
                    argument(element.pid),
                    argument(element.id),
                    now(),
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

/// Claims many at once; answers the ids of those that were. No entry, id or request stands twice among them.
fn claim_many(elements: &[&Element<'_>], verb: &str) -> HashSet<i64> {
    let claimed = CLAIM_MANY.with(|s| {
        s.rows(
            &[
                argument(verb),
                column(elements, |e| e.ns),
                column(elements, |e| e.principal),
                column(elements, |e| e.request),
                column(elements, |e| e.hash),
                column(elements, |e| e.pid),
                column(elements, |e| e.stem()),
                column(elements, |e| e.id),
            ],
            |row| row.get::<i64>(1),
        )
    });
    claimed.into_iter().flatten().collect()
}

/// One array of what elements have.
fn column<E, T>(elements: &[E], value: impl Fn(&E) -> T) -> Argument
where
    Vec<T>: IntoDatum,
{
    argument(elements.iter().map(value).collect::<Vec<T>>())
}

/// Entries, ids and requests of a call: what stands twice goes one after the other.
#[derive(Default)]
struct Seen {
    entries: HashSet<(i64, String)>,
    ids: HashSet<i64>,
    requests: HashSet<[u8; 16]>,
}

impl Seen {
    /// Is nothing of this element another's? All of it is seen from now on.
    fn is_first(&mut self, e: &Element<'_>) -> bool {
        let of_it = [
            self.entries.insert((e.pid, e.stem().to_owned())),
            self.ids.insert(e.id),
            self.requests.insert(*e.request.as_bytes()),
        ];
        of_it == [true; 3]
    }
}

/// As clock_timestamp(): when a request is recorded, not when its transaction began.
fn now() -> Argument {
    // SAFETY: reads the clock.
    Some(unsafe { pg_sys::GetCurrentTimestamp() }.into())
}

/// Has the directory a tombstone (not asked on Citus, where that is known), or an entry of this name, with a slash or
/// without? Within `Spi::connect` only.
fn is_taken(pid: i64, name: &str) -> bool {
    let (pid, object, directory) = (argument(pid), argument(name), argument(format!("{name}/")));
    if !is_distributed() {
        return TAKEN.with(|s| s.run(&[pid, object, directory])) > 0;
    }
    [object, directory].into_iter().any(|name| ENTRY.with(|s| s.run(&[pid, name])) > 0)
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
