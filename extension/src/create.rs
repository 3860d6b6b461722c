//! The short way of mkdir and put_object: new entries against which nothing speaks, one after the other. What exists, is
//! refused, or was answered before is left to the way for all cases (`sql/verbs/mkdir.sql`, `put_object.sql`), which finds
//! out why. The caller has taken the latches (`verb.rs`), so what is read of a name here stays until the commit.

mod directories;
mod objects;

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    ffi::CStr,
    rc::Rc,
};

use mantle_types::{ErrorCode, name::check_name};
use pgrx::{pg_sys, prelude::*};

use crate::{
    counts::{Delta, add},
    distribution::{Home, at_home, home_of},
    guard::{self, Fault, sqlstate},
    import_plan::FIRST_ID,
    kept::{Argument, Kept, argument},
    lease::{self, recent_epoch_of},
    probe::{Probe, entry_key},
    request_age::is_fresh,
    verb::Arguments,
    writer::Writer,
};

const INT4S: pg_sys::Oid = pg_sys::INT4ARRAYOID;
const INT8S: pg_sys::Oid = pg_sys::INT8ARRAYOID;
const TEXTS: pg_sys::Oid = pg_sys::TEXTARRAYOID;
const UUIDS: pg_sys::Oid = pg_sys::UUIDARRAYOID;
const JSONBS: pg_sys::Oid = pg_sys::JSONBARRAYOID;
const TEXT: pg_sys::Oid = pg_sys::TEXTOID;

/// Of table `requests`.
const REQUEST: [&CStr; 9] =
    [c"ns", c"principal", c"request_id", c"request_hash", c"verb", c"pid", c"id", c"version", c"created"];

thread_local! {
    // The block that an id is of, if any; not one of this transaction, which may yet be rolled back.
    static BLOCK: Kept = const { Kept::new(
        c"SELECT b.first_id, b.last_id, b.allocated < now() FROM mantle.id_blocks b
           WHERE b.first_id <= $1 ORDER BY b.first_id DESC LIMIT 1", &[pg_sys::INT8OID]) };
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

/// Arguments whose text [`Columns`] look at.
struct Texts<'a> {
    name: Array<'a, &'a str>,
    lease: Option<Array<'a, &'a str>>,
}

impl Texts<'_> {
    /// `None`: the names are NULL.
    fn of(call: &Arguments, lease_at: usize) -> Option<Self> {
        Some(Self { name: call.get(3)?, lease: call.get(lease_at) })
    }
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
    /// Principals to modes are the first of a verb's arguments, `texts` among them; the request and its hash follow one another.
    /// `None`: one is NULL.
    fn of(call: &Arguments, texts: &'a Texts<'_>, request_at: usize) -> Option<Self> {
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
struct Call<'a> {
    /// Those that exist, and the epochs of their index groups.
    namespaces: HashMap<i64, u64>,
    /// Directories without a tombstone; the latch keeps them so.
    live: HashSet<i64>,
    /// Entries made, by directory and stem.
    entries: HashSet<(i64, &'a str)>,
    /// Numbers of the elements made, from 1.
    made: Vec<i32>,
    deltas: BTreeMap<i64, Delta>,
}

impl<'a> Call<'a> {
    /// Are name, id, namespace and lease good, and is the request id none that has to be looked at?
    fn is_sound(&mut self, element: &Element<'_>) -> bool {
        if check_name(element.stem()).is_err() || !is_recorded(element.id) || !is_fresh(&element.request) {
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

    /// Has the directory no tombstone (P7), and no entry of this name, be it a directory's or an object's
    /// (P29)?
    fn is_free(&mut self, meta: &mut Probe, element: &Element<'_>) -> bool {
        let (pid, object) = (element.pid, element.stem());
        let is_live = self.live.contains(&pid) || {
            let removed = meta.find(&entry_key(pid, "/_ATTR"), |row| row.named::<bool>(c"removed")).flatten();
            removed != Some(true) && self.live.insert(pid)
        };
        let names = [object, &format!("{object}/")];
        is_live
            && !self.entries.contains(&(pid, object))
            && !names.into_iter().any(|name| meta.find(&entry_key(pid, name), |_| ()).is_some())
    }

    /// Does nothing speak against this new entry? If so its request is recorded.
    fn claim<const N: usize>(&mut self, tables: &mut Tables<N>, element: &Element<'_>, verb: &str) -> bool {
        self.is_sound(element) && self.is_free(&mut tables.probe, element) && tables.record(element, verb)
    }

    fn count(&mut self, at: usize, element: &Element<'a>, subdirectories: i64, bytes: i64) {
        self.made.push(at as i32 + 1);
        self.entries.insert((element.pid, element.stem()));
        let delta = self.deltas.entry(element.pid).or_insert(Delta { ns: element.ns, ..Delta::default() });
        delta.entries += 1;
        delta.subdirectories += subdirectories;
        delta.bytes = add(delta.bytes, bytes);
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

/// The tables of one home, open for a call. `N` columns of an entry are written.
struct Tables<const N: usize> {
    home: Rc<Home>,
    /// Of the MetaTable as it was when the latches were held: it does not see what this call does. Dropped before `meta`.
    probe: Probe,
    meta: Writer,
    columns: [i32; N],
    requests: Writer,
    request_columns: [i32; REQUEST.len()],
}

impl<const N: usize> Tables<N> {
    fn open(home: Rc<Home>, columns: [&CStr; N]) -> Self {
        let (meta, requests) = (Writer::open(&home.meta), Writer::open(&home.requests));
        let (columns, request_columns) = (meta.columns(columns), requests.columns(REQUEST));
        let probe = meta.probe(entry_key(0, "").len());
        Self { home, probe, meta, columns, requests, request_columns }
    }

    /// Records the answer to a request; `false`: it has one, or is answered by another call just now.
    fn record(&mut self, element: &Element<'_>, verb: &str) -> bool {
        let values = [
            argument(element.ns),
            argument(element.principal),
            argument(element.request),
            argument(element.hash),
            argument(verb),
            argument(element.pid),
            argument(element.id),
            argument(1_i64),
            now(),
        ];
        self.requests.insert_if_free(&self.request_columns, values)
    }

    fn insert(&mut self, values: [Argument; N]) {
        self.meta.insert(&self.columns, values);
    }
}

/// The tables that a call writes to. Opened when the latches are held, within `Spi::connect` only.
struct Homes<const N: usize> {
    columns: [&'static CStr; N],
    /// One, but on Citus.
    open: Vec<Tables<N>>,
}

impl<const N: usize> Homes<N> {
    fn new(columns: [&'static CStr; N]) -> Self {
        Self { columns, open: Vec::new() }
    }

    /// Those of a directory's entries; `None`: on another node.
    fn of(&mut self, pid: i64) -> Option<&mut Tables<N>> {
        let home = home_of(pid)?;
        if let Some(at) = self.open.iter().position(|tables| tables.home == home) {
            return self.open.get_mut(at);
        }
        self.open.push(at_home(pid, |home| Tables::open(home, self.columns))?);
        self.open.last_mut()
    }

    /// Adds to the counts of directories that got new entries.
    fn count(mut self, deltas: &BTreeMap<i64, Delta>) {
        for (pid, delta) in deltas {
            delta.add_to(*pid, self.of(*pid).map(|tables| &mut tables.meta));
        }
    }
}

/// Is an id of a recorded block (P9)? Within `Spi::connect` only.
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
