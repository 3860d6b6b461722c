//! Adds to a directory's counts, as the setting `mantle.delta_records` says.
//!
//! `auto` updates the primary attribute record if it can lock it without waiting. If the record is locked, absent or
//! removed, which look alike, it appends a delta record (P10), and also if the record has many old versions. Callers hold
//! the shared latch of the directory.

use std::iter::zip;

use pgrx::{direct_function_call, direct_function_call_as_datum, pg_sys, prelude::*};

use super::key::{entry_key, record_key};
use crate::{
    citus::placement::{delta_ts_base, open_local},
    postgres::{
        clock::now,
        row::{Row, Value, value},
        saved_plan::SavedPlan,
        writer::{TupleCopy, Writer},
    },
    settings::{DELTA_RECORDS, DeltaRecords},
};

const INT8: pg_sys::Oid = pg_sys::INT8OID;
/// Most delta records of one directory on one node.
const DELTA_RECORDS_MAX: i64 = 8192;
/// Most chains of old versions of an attribute record that calls add to in place. An old snapshot keeps all versions, and
/// each call would read past them: with 60,000 of them, one call took three times as long. Compaction adds one version for
/// many delta records.
const OLD_CHAINS_MAX: usize = 4;
/// Numbers to try before waiting for the holder of one.
const TS_TRIED_MAX: usize = 16;

thread_local! {
    // The numbers of delta records (`$6`; 0 is the primary record) wrap around, so that keys of folded records are used
    // again. Otherwise dirstat would read past the dead index entries of all records since the last vacuum (4,000 a
    // second for 60 s: 1,060 pages, 3 to 8 ms). A number that is taken means that thousands of records wait for
    // compaction, or that two sessions took it at once: the record is added to.
    static ADD: SavedPlan = const { SavedPlan::new(
        c"INSERT INTO mantle.meta AS m (pid, name, ts, ns, entries, subdirectories, bytes, modified, removed)
          VALUES ($1, '/_ATTR', $6, $5, $2, $3, $4, now(), $7)
              ON CONFLICT (pid, name, ts) DO UPDATE
             SET entries = m.entries + excluded.entries, subdirectories = m.subdirectories + excluded.subdirectories,
                 bytes = m.bytes + excluded.bytes, modified = greatest(m.modified, excluded.modified)",
        &[INT8, INT8, INT8, INT8, INT8, INT8, pg_sys::BOOLOID]) };
}

/// A directory's primary attribute record as it was read under the latch, and how many chains of old versions were passed;
/// `None` if there is none.
pub type Seen = Option<(TupleCopy, usize)>;

/// A change of one directory's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    pub ns: i64,
    /// Objects and directories.
    pub entries: i64,
    pub subdirectories: i64,
    /// Total size of the objects.
    pub bytes: i64,
}

impl Delta {
    /// Adds to the counts of `pid`. `meta` is the table that has them, `None` if only Citus can write it. Only within
    /// `Spi::connect`.
    pub fn add_to(&self, pid: i64, meta: Option<&mut Writer>) {
        let Some(meta) = meta else { return self.add_by_citus(pid) };
        let seen = match DELTA_RECORDS.get() {
            DeltaRecords::Auto => meta.find_counting(&entry_key(pid, "/_ATTR"), TupleCopy::of),
            _ => None,
        };
        self.add_to_seen(pid, meta, seen);
    }

    /// The same, if this call has read the record, and has not written it.
    pub fn add_to_seen(&self, pid: i64, meta: &mut Writer, seen: Seen) {
        let is_done = match DELTA_RECORDS.get() {
            DeltaRecords::Never => return self.add_by_statement(pid, 0, Some(false)),
            DeltaRecords::Auto => self.add_in_place(meta, seen) || self.append(pid, meta),
            DeltaRecords::Always => self.append(pid, meta),
        };
        if !is_done {
            self.add_by_statement(pid, next_ts(), None);
        }
    }

    fn add_by_citus(&self, pid: i64) {
        match DELTA_RECORDS.get() {
            DeltaRecords::Never => self.add_by_statement(pid, 0, Some(false)),
            _ => self.add_by_statement(pid, next_ts(), None),
        }
    }

    /// Adds to the record with this `ts`, waiting for it if it is locked, or makes it.
    fn add_by_statement(&self, pid: i64, ts: i64, removed: Option<bool>) {
        let [key, entries, subdirectories, bytes, ns] = self.arguments(pid);
        ADD.with(|s| s.run(&[key, entries, subdirectories, bytes, ns, value(ts), value(removed)]));
    }

    fn arguments(&self, pid: i64) -> [Value; 5] {
        [pid, self.entries, self.subdirectories, self.bytes, self.ns].map(value)
    }

    /// Adds to the primary attribute record unless it is locked or has many old versions. A record changed since it was
    /// read counts as locked.
    fn add_in_place(&self, meta: &mut Writer, seen: Seen) -> bool {
        let Some((record, old_chains)) = seen else { return false };
        let row = meta.row(&record);
        old_chains <= OLD_CHAINS_MAX && row.named::<bool>(c"removed") != Some(true) && {
            let sum = Sum::of(self, &row);
            sum.write(meta, &record)
        }
    }

    /// Appends a delta record under a free number, or adds to a record that it can lock. It skips locked ones:
    /// compaction may be folding the record and waiting for a directory that this transaction added to in place, a
    /// deadlock. `false` if all numbers that it tried are locked.
    fn append(&self, pid: i64, meta: &mut Writer) -> bool {
        let columns =
            meta.columns([c"pid", c"name", c"ts", c"ns", c"entries", c"subdirectories", c"bytes", c"modified"]);
        (0..TS_TRIED_MAX).any(|_| {
            let ts = next_ts();
            match meta.find(&record_key(pid, "/_ATTR", ts), |row| (Sum::of(self, row), TupleCopy::of(row))) {
                Some((sum, record)) => sum.write(meta, &record),
                None => {
                    let [key, entries, subdirectories, bytes, ns] = self.arguments(pid);
                    let (name, now) = (value("/_ATTR"), value(now()));
                    meta.insert_if_free(zip(columns, [key, name, value(ts), ns, entries, subdirectories, bytes, now]))
                }
            }
        })
    }
}

/// The new counts of a record.
struct Sum {
    /// Entries, subdirectories, bytes, modified.
    values: [Value; 4],
}

impl Sum {
    fn of(delta: &Delta, row: &Row) -> Self {
        let count = |name, more| value(row.named::<i64>(name).map(|count| add(count, more)));
        let modified = row.named::<i64>(c"modified").map_or(now(), |modified| modified.max(now()));
        let values = [
            count(c"entries", delta.entries),
            count(c"subdirectories", delta.subdirectories),
            count(c"bytes", delta.bytes),
            value(modified),
        ];
        Self { values }
    }

    /// `false`, and nothing written, if the record is locked or has changed.
    fn write(self, meta: &mut Writer, record: &TupleCopy) -> bool {
        let columns = meta.columns([c"entries", c"subdirectories", c"bytes", c"modified"]);
        meta.update_if_free(record, zip(columns, self.values))
    }
}

/// Adds like SQL's bigint: an overflow is error 22003.
pub fn add(count: i64, more: i64) -> i64 {
    count.checked_add(more).unwrap_or_else(|| {
        pgrx::ereport!(ERROR, PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, "bigint out of range");
    })
}

/// A new number for a delta record. It is not computed in the statement: Citus saves no plan that has a volatile
/// function.
fn next_ts() -> i64 {
    delta_ts_base() + 1 + next_number() % DELTA_RECORDS_MAX
}

/// The next number of the sequence that delta records and rows of the pruning queue share.
pub fn next_number() -> i64 {
    // SAFETY: regclassin gets a C string, and nextval the OID that it answers; both raise if an argument is wrong.
    let next = unsafe {
        let sequence = direct_function_call_as_datum(pg_sys::regclassin, &[c"mantle.delta_ts".into_datum()]);
        direct_function_call::<i64>(pg_sys::nextval_oid, &[sequence])
    };
    next.unwrap_or_default()
}

/// Adds to one directory's counts, as `mantle.delta_records` says.
#[pg_extern(volatile)]
fn add_counts(p_ns: i64, p_pid: i64, p_entries: i64, p_subdirectories: i64, p_bytes: i64) {
    let delta = Delta { ns: p_ns, entries: p_entries, subdirectories: p_subdirectories, bytes: p_bytes };
    Spi::connect_mut(|_| delta.add_to(p_pid, open_local(p_pid, |tables| Writer::open(&tables.meta)).as_mut()));
}
