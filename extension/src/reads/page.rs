//! A page of a directory: which entries are in it.

use std::ops::ControlFlow;

use pgrx::pg_sys;

use super::tables::{OpenTable, int8};
use crate::{
    citus::shards::is_distributed,
    postgres::{
        call::call_function,
        catalog,
        probe::{Columns, Key, ScanKeys, is_empty},
    },
    steps::name::{above_all_names, prefix_end},
};

/// Columns of the MetaTable, from 1 (`sql/tables/meta.sql`).
const PID: i16 = 1;
const NAME: i16 = 2;
const TS: i16 = 3;
const NS: i32 = 4;
const EXPLICIT: i32 = 10;
/// Conditions on the primary key; the name has two.
pub const CONDITIONS: usize = 4;

pub struct Page {
    ns: i64,
    pid: i64,
    ranges: Vec<Range>,
    limit: usize,
}

/// Names from one, or after it, and below another.
struct Range {
    from: String,
    is_from_included: bool,
    below: String,
}

/// The ranges of names with a prefix and after `start_after`, around the attribute and delta records: `/_ATTR` lies
/// between `/` and `0`.
fn ranges(start_after: Option<&str>, prefix: &str) -> Vec<Range> {
    let after = start_after.filter(|after| *after >= prefix);
    let (from, is_from_included) = (after.unwrap_or(prefix), after.is_none());
    let below = prefix_end(prefix).unwrap_or_else(above_all_names);
    let range = |from: &str, is_from_included, below: &str| Range {
        from: from.to_owned(),
        is_from_included,
        below: below.to_owned(),
    };
    let mut ranges = vec![range(from, is_from_included, below.as_str().min("/"))];
    ranges.push(if from < "0" { range("0", true, &below) } else { range(from, is_from_included, &below) });
    ranges.retain(|range| range.from < range.below);
    ranges
}

impl Page {
    /// `None` for a negative limit.
    pub fn new(ns: i64, pid: i64, start_after: Option<&str>, prefix: Option<&str>, limit: i32) -> Option<Self> {
        let limit = usize::try_from(limit).ok()?;
        Some(Self { ns, pid, ranges: ranges(start_after, prefix.unwrap_or_default()), limit })
    }

    /// Reads the page's rows until `take` breaks. Breaks itself if it meets more entries of the PostgreSQL index than
    /// `unseen_max` whose rows the statement does not see.
    pub fn read<C>(
        &self,
        table: &mut OpenTable<C>,
        unseen_max: usize,
        mut take: impl FnMut(&Columns<'_>, &C) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (mut left, mut unseen_left) = (self.limit, unseen_max);
        let OpenTable { probe, columns, .. } = table;
        for Range { from, is_from_included, below } in &self.ranges {
            if left == 0 {
                break;
            }
            let key: [Key; CONDITIONS] = [
                Key::int8(PID, self.pid),
                Key::text_from(NAME, from, *is_from_included),
                Key::text_below(NAME, below),
                Key::int8(TS, 0),
            ];
            let mut taken = ControlFlow::Continue(());
            let is_whole = probe.scan_within(&mut ScanKeys::new(&key), &mut unseen_left, |row| {
                pgrx::check_for_interrupts!();
                // Directory 0 has the roots of all namespaces.
                if self.pid != 0 && int8(row.datum(NS)) != Some(self.ns) {
                    return true;
                }
                taken = take(row, columns);
                left -= 1;
                taken.is_continue() && left > 0
            });
            taken?;
            if !is_whole {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

/// Whether an entry is a directory that no request made.
pub fn is_implicit(row: &Columns<'_>) -> bool {
    row.datum(EXPLICIT).is_some_and(|explicit| explicit.value() == 0)
}

/// Whether a directory waits for the worker. On Citus any node may have the row.
pub fn are_directories_queued() -> bool {
    if is_distributed() {
        return call_function(c"are_directories_queued", &[], &[]).is_some_and(|are| are.value() != 0);
    }
    let (table, index) = (catalog::table(c"prune_queue"), catalog::table(c"prune_queue_queued"));
    // SAFETY: the calling statement has an active snapshot, and the index is the table's.
    unsafe { !is_empty(table, index, pg_sys::GetActiveSnapshot()) }
}
