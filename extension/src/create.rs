//! The short way of mkdir and put_object: new entries against which nothing speaks, one after the other. What exists, is
//! refused, or was answered before is left to the way for all cases (`sql/verbs/mkdir.sql`, `put_object.sql`), which finds
//! out why. The caller has taken the latches, so what is read of a name here stays until the commit.

mod directories;
mod objects;

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    ffi::CStr,
    thread::LocalKey,
};

use mantle_types::{ErrorCode, name::check_name};
use pgrx::{pg_sys, prelude::*};

use crate::{
    counts::Delta,
    distribution::is_distributed,
    guard::{self, Fault, sqlstate},
    import_plan::FIRST_ID,
    kept::{Argument, Kept, argument},
    lease::{self, recent_epoch_of},
    probe::{Table, entry_key},
    writer::Writer,
};

const INT4: pg_sys::Oid = pg_sys::INT4OID;
const INT8: pg_sys::Oid = pg_sys::INT8OID;
const TEXT: pg_sys::Oid = pg_sys::TEXTOID;
const UUID: pg_sys::Oid = pg_sys::UUIDOID;
const BOOL: pg_sys::Oid = pg_sys::BOOLOID;
const JSONB: pg_sys::Oid = pg_sys::JSONBOID;
const INT4S: pg_sys::Oid = pg_sys::INT4ARRAYOID;
const INT8S: pg_sys::Oid = pg_sys::INT8ARRAYOID;
const UUIDS: pg_sys::Oid = pg_sys::UUIDARRAYOID;
const TIME: pg_sys::Oid = pg_sys::TIMESTAMPTZOID;

thread_local! {
    // The block that an id is of, if any; not one of this transaction, which may yet be rolled back.
    static BLOCK: Kept = const { Kept::new(
        c"SELECT b.first_id, b.last_id, b.allocated < now() FROM mantle.id_blocks b
           WHERE b.first_id <= $1 ORDER BY b.first_id DESC LIMIT 1", &[INT8]) };
    // On Citus one of them after the other: it keeps the local plans of statements on one row alone, and of no volatile
    // function (CLAIM has the time as a parameter). Any other is put into words, parsed and planned each time.
    static RECORD: Kept = const { Kept::new(
        c"SELECT coalesce(m.removed, false) FROM mantle.meta m WHERE m.pid = $1 AND m.name = '/_ATTR' AND m.ts = 0", &[INT8]) };
    static ENTRY: Kept = const { Kept::new(
        c"SELECT FROM mantle.meta m WHERE m.pid = $1 AND m.name = $2 AND m.ts = 0", &[INT8, TEXT]) };
    static CLAIM: Kept = const { Kept::new(
        c"INSERT INTO mantle.requests (ns, principal, request_id, request_hash, verb, pid, id, version, created)
          VALUES ($1, $2, $3, $4, $5, $6, $7, 1, $8) ON CONFLICT DO NOTHING",
        &[INT8, INT4, UUID, INT8, TEXT, INT8, INT8, TIME]) };
    // As CLAIM, for many at once.
    static CLAIM_MANY: Kept = const { Kept::new(
        c"INSERT INTO mantle.requests (ns, principal, request_id, request_hash, verb, pid, id, version)
          SELECT u.ns, u.principal, u.request, u.hash, $1, u.pid, u.id, 1
            FROM unnest($2, $3, $4, $5, $6, $7) AS u(ns, principal, request, hash, pid, id)
              ON CONFLICT DO NOTHING RETURNING id",
        &[TEXT, INT8S, INT4S, UUIDS, INT8S, INT8S, INT8S]) };
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
    /// None: all were resolved in this transaction.
    lease: Vec<Option<&'a str>>,
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
    lease: Option<&'a str>,
}

impl<'a> Element<'a> {
    /// The name without its slash.
    fn stem(&self) -> &'a str {
        self.name.strip_suffix('/').unwrap_or(self.name)
    }
}

impl<'a> Columns<'a> {
    /// Are all arrays, the verb's `others` too, as long as the names, and not too long? Leases may be none.
    fn are_even<const N: usize>(&self, others: [usize; N]) -> bool {
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
        guard::shape_error(self.name.len(), lengths.into_iter().chain(others).chain(leases)).is_none()
    }

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
            lease: self.lease.get(at).copied().flatten(),
        };
        let in_range = element.pid >= FIRST_ID && element.owner >= 0 && element.grp >= 0;
        (in_range && (0..=0o777).contains(&element.mode)).then_some(element)
    }
}

/// What a call has found out, and done, so far.
#[derive(Default)]
struct Call {
    /// Those that exist, and the epochs of their index groups.
    namespaces: HashMap<i64, u64>,
    /// Directories without a tombstone; the latch keeps them so.
    live: HashSet<i64>,
    /// Numbers of the elements made, from 1.
    made: Vec<i32>,
    deltas: BTreeMap<i64, Delta>,
}

impl Call {
    /// Are name, id, namespace and lease good?
    fn is_sound(&mut self, element: &Element<'_>) -> bool {
        if check_name(element.stem()).is_err() || !is_recorded(element.id) {
            return false;
        }
        let epoch = match self.namespaces.entry(element.ns) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(unknown) => match recent_epoch_of(element.ns) {
                Some(epoch) => *unknown.insert(epoch),
                None => return false,
            },
        };
        lease::check(element.lease, epoch).is_ok()
    }

    /// Has the directory no tombstone (PROTOCOLS 7), and no entry of this name, be it a directory's or an object's
    /// (PROTOCOLS 29)? `meta`: the MetaTable, but on Citus.
    fn is_free(&mut self, meta: Option<&Table>, element: &Element<'_>) -> bool {
        let (pid, object) = (element.pid, element.stem());
        let names = [object, &format!("{object}/")];
        let is_live = self.live.contains(&pid) || {
            let removed = match meta {
                Some(meta) => meta.find(&entry_key(pid, "/_ATTR"), |row| row.named::<bool>(c"removed")).flatten(),
                None => RECORD.with(|s| s.rows(&[argument(pid)], |row| row.get::<bool>(1))).pop().flatten(),
            };
            removed != Some(true) && self.live.insert(pid)
        };
        is_live
            && !names.into_iter().any(|name| match meta {
                Some(meta) => meta.has(&entry_key(pid, name)),
                None => ENTRY.with(|s| s.run(&[argument(pid), argument(name)])) > 0,
            })
    }

    /// Does nothing speak against this new entry? If so its request is recorded.
    fn claim(&mut self, meta: Option<&Table>, element: &Element<'_>, verb: &str) -> bool {
        self.is_sound(element)
            && self.is_free(meta, element)
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

/// Claims many at once; answers the ids of those that were. No id or request stands twice among them.
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

/// As now().
fn transaction_start() -> Argument {
    // SAFETY: reads the transaction's state.
    Some(unsafe { pg_sys::GetCurrentTransactionStartTimestamp() }.into())
}

/// The MetaTable, for [`Call::is_free`]. Opened when the latches are held. Within `Spi::connect` only.
fn meta() -> Option<Table> {
    (!is_distributed()).then(|| Table::open(c"meta"))
}

/// Rows of new entries on their way into the MetaTable. Within `Spi::connect` only.
struct Rows<const N: usize> {
    /// Columns of the table, and the statement that has them as parameters, in this order.
    columns: [&'static CStr; N],
    statement: &'static LocalKey<Kept>,
    /// Opened by the first row; `None` on Citus.
    meta: Option<(Writer, [i32; N])>,
}

impl<const N: usize> Rows<N> {
    fn new(columns: [&'static CStr; N], statement: &'static LocalKey<Kept>) -> Self {
        Self { columns, statement, meta: None }
    }

    fn insert(&mut self, values: [Argument; N]) {
        if is_distributed() {
            self.statement.with(|s| s.run(&values));
            return;
        }
        let (meta, numbers) = self.meta.get_or_insert_with(|| {
            let meta = Writer::open(c"meta");
            let numbers = meta.columns(self.columns);
            (meta, numbers)
        });
        meta.insert(numbers, values);
    }

    /// Adds to the counts of directories that got new entries.
    fn count(mut self, deltas: &BTreeMap<i64, Delta>) {
        for (pid, delta) in deltas {
            delta.add_to(*pid, self.meta.as_mut().map(|(meta, _)| meta));
        }
    }
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
