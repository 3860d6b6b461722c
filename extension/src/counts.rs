//! Adds to a directory's counts, as `mantle.delta_records` says: in place only where the primary attribute record could be
//! locked without waiting; held, absent or removed look alike and append a delta record (PROTOCOLS 10). Callers hold the
//! shared latch of the directory.

use pgrx::{direct_function_call, direct_function_call_as_datum, pg_sys, prelude::*};

use crate::{
    distribution::{delta_ts_base, is_distributed},
    kept::{Kept, argument},
    probe::{Table, entry_key, record_key},
    settings::{DELTA_RECORDS, DeltaRecords},
    writer::{Copy, Writer},
};

const INT8: pg_sys::Oid = pg_sys::INT8OID;
/// Most delta records that one node keeps of a directory.
const DELTA_RECORDS_MAX: i64 = 8192;
/// So many numbers of delta records are tried before one is waited for.
const NUMBERS_TRIED: usize = 16;

thread_local! {
    // Citus.
    static LOCK: Kept = const { Kept::new(
        c"SELECT FROM mantle.meta h WHERE h.pid = $1 AND h.name = '/_ATTR' AND h.ts = 0 AND h.removed IS NOT TRUE
             FOR UPDATE SKIP LOCKED", &[INT8]) };
    static ADD: Kept = const { Kept::new(
        c"UPDATE mantle.meta m
             SET entries = m.entries + $2, subdirectories = m.subdirectories + $3, bytes = m.bytes + $4,
                 modified = greatest(m.modified, now())
           WHERE m.pid = $1 AND m.name = '/_ATTR' AND m.ts = 0", &[INT8, INT8, INT8, INT8]) };
    // The numbers come round, so that keys of records that are folded are used again: else dirstat reads past the dead index
    // entries of all since the last vacuum (4,000 a second and 60 s: 1,060 pages, 3 to 8 ms). A number that is taken means
    // that thousands wait for compaction, or that two came to it at once: it is added to.
    static APPEND: Kept = const { Kept::new(
        c"INSERT INTO mantle.meta AS m (pid, name, ts, ns, entries, subdirectories, bytes, modified)
          VALUES ($1, '/_ATTR', $6, $5, $2, $3, $4, now())
              ON CONFLICT (pid, name, ts) DO UPDATE
             SET entries = m.entries + excluded.entries, subdirectories = m.subdirectories + excluded.subdirectories,
                 bytes = m.bytes + excluded.bytes, modified = greatest(m.modified, excluded.modified)",
        &[INT8, INT8, INT8, INT8, INT8, INT8]) };
    static WAIT_AND_ADD: Kept = const { Kept::new(
        c"INSERT INTO mantle.meta AS m (pid, name, ts, ns, entries, subdirectories, bytes, modified, removed)
          VALUES ($1, '/_ATTR', 0, $5, $2, $3, $4, now(), false)
              ON CONFLICT (pid, name, ts) DO UPDATE
             SET entries = m.entries + excluded.entries, subdirectories = m.subdirectories + excluded.subdirectories,
                 bytes = m.bytes + excluded.bytes, modified = greatest(m.modified, excluded.modified)",
        &[INT8, INT8, INT8, INT8, INT8]) };
}

/// What is added to one directory's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// The namespace.
    pub ns: i64,
    /// Entries, directories among them.
    pub entries: i64,
    /// Directories.
    pub subdirectories: i64,
    /// Bytes of objects.
    pub bytes: i64,
}

impl Delta {
    /// Adds to `pid`'s counts. `meta`: the MetaTable, but on Citus. Within `Spi::connect` only.
    pub fn add_to(&self, pid: i64, mut meta: Option<&mut Writer>) {
        let counts = [argument(pid), argument(self.entries), argument(self.subdirectories), argument(self.bytes)];
        let [key, entries, subdirectories, bytes] = counts;
        let ns = argument(self.ns);
        let done = match (DELTA_RECORDS.get(), meta.as_deref_mut()) {
            (DeltaRecords::Never, _) => {
                WAIT_AND_ADD.with(|s| s.run(&[key, entries, subdirectories, bytes, ns]));
                true
            }
            (DeltaRecords::Always, _) => false,
            (DeltaRecords::Auto, Some(meta)) => self.add_in_place(pid, meta),
            (DeltaRecords::Auto, None) => {
                let held = LOCK.with(|s| s.run(&[key])) > 0;
                held && ADD.with(|s| s.run(&counts)) > 0
            }
        };
        if !done {
            let ts = meta.map_or_else(next_ts, |meta| free_ts(pid, meta));
            APPEND.with(|s| s.run(&[key, entries, subdirectories, bytes, ns, argument(ts)]));
        }
    }

    /// Adds to the primary attribute record if it is free. A record that was changed since it was read is taken for held.
    fn add_in_place(&self, pid: i64, meta: &mut Writer) -> bool {
        let read = Table::open(c"meta").find(&entry_key(pid, "/_ATTR"), |row| {
            let count = |name, more| argument(row.named::<i64>(name).map(|count| count + more));
            let counts = [
                count(c"entries", self.entries),
                count(c"subdirectories", self.subdirectories),
                count(c"bytes", self.bytes),
            ];
            let is_live = row.named::<bool>(c"removed") != Some(true);
            is_live.then(|| (Copy::of(row), counts, row.named::<i64>(c"modified")))
        });
        let Some((row, [entries, subdirectories, bytes], modified)) = read.flatten() else { return false };
        if !meta.lock(&row) {
            return false;
        }
        // SAFETY: reads the transaction's state.
        let now = unsafe { pg_sys::GetCurrentTransactionStartTimestamp() };
        let modified = argument(modified.map_or(now, |modified| modified.max(now)));
        let columns = meta.columns([c"entries", c"subdirectories", c"bytes", c"modified"]);
        meta.update(&row, &columns, [entries, subdirectories, bytes, modified]);
        true
    }
}

/// The number of a delta record. Not within its statement: Citus keeps no plan of one that has a volatile function in it.
fn next_ts() -> i64 {
    // SAFETY: both functions raise what is wrong with their argument: regclassin's is a C string, nextval's what it answers.
    let next = unsafe {
        let sequence = direct_function_call_as_datum(pg_sys::regclassin, &[c"mantle.delta_ts".into_datum()]);
        direct_function_call::<i64>(pg_sys::nextval_oid, &[sequence])
    };
    delta_ts_base() + 1 + next.unwrap_or_default() % DELTA_RECORDS_MAX
}

/// The number of a delta record that nobody holds: there is none of it, or it is locked here, to be added to. One that is being
/// folded is passed over: who folds it may wait for a directory that this transaction added to in place, so that both would
/// wait for ever. (On Citus compaction takes one directory after the other, as batches do: there is no such circle.)
fn free_ts(pid: i64, meta: &mut Writer) -> i64 {
    let (records, mut ts) = (Table::open(c"meta"), next_ts());
    for _ in 0..NUMBERS_TRIED {
        match records.find(&record_key(pid, "/_ATTR", ts), Copy::of) {
            Some(row) if !meta.lock(&row) => ts = next_ts(),
            _ => break,
        }
    }
    ts
}

/// Adds to one directory's counts.
#[pg_extern(volatile)]
fn add_counts(p_ns: i64, p_pid: i64, p_entries: i64, p_subdirectories: i64, p_bytes: i64) {
    let delta = Delta { ns: p_ns, entries: p_entries, subdirectories: p_subdirectories, bytes: p_bytes };
    Spi::connect_mut(|_| delta.add_to(p_pid, (!is_distributed()).then(|| Writer::open(c"meta")).as_mut()));
}
