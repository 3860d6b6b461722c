//! `mantle.list` and `mantle.list_filled`: a page of a directory's entries in name order.

use std::{ffi::CStr, ops::ControlFlow};

use pgrx::pg_sys;

use super::{
    answer::Answer,
    tables::{Found, OpenTable, Tables, int8},
};
use crate::{
    citus::shards::is_distributed,
    postgres::{
        call::{Arguments, call_function},
        catalog,
        function::{Done, c_function},
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
const CONDITIONS: usize = 4;

const ARGUMENTS: [pg_sys::Oid; 5] =
    [pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::INT4OID];

c_function!(mantle_list, pg_finfo_mantle_list, |call| run(call, c"list_fallback", |_| true));

// An implicit directory may hold no key only while a directory waits for the worker (P54).
c_function!(mantle_list_filled, pg_finfo_mantle_list_filled, |call| {
    let mut none_waits = false;
    run(call, c"list_filled_fallback", move |row| {
        let is_implicit = row.datum(EXPLICIT).is_some_and(|explicit| explicit.value() == 0);
        none_waits = none_waits || is_implicit && !are_directories_queued();
        !is_implicit || none_waits
    })
});

/// Answers a page of rows that `may_show` lets pass; leaves it to the fallback if it refuses one, or the page cannot be
/// read here.
fn run(call: &Arguments, fallback: &CStr, may_show: impl FnMut(&Columns<'_>) -> bool) -> Done {
    match fast_path(call, may_show) {
        Some(()) => Done::Rows,
        None => Done::Call(call.pass_to(fallback, &ARGUMENTS, &[])),
    }
}

fn fast_path(call: &Arguments, may_show: impl FnMut(&Columns<'_>) -> bool) -> Option<()> {
    let (ns, pid) = (call.get::<i64>(0)?, call.get::<i64>(1)?);
    let limit = usize::try_from(call.get::<i32>(4)?).ok()?;
    let ranges = ranges(call.get(2), call.get(3).unwrap_or_default());
    let mut tables = Tables::begin(CONDITIONS)?;
    let mut answer = Answer::begin(call);
    let page = Page { ns, pid, left: limit, may_show };
    let read = match tables.of(pid, &answer) {
        Found::Here(table) => page.read(table, &ranges, &mut answer),
        Found::NotNow | Found::BySql => ControlFlow::Break(()),
    };
    if read.is_break() || !tables.hold() {
        answer.discard();
        return None;
    }
    Some(())
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

struct Page<F> {
    ns: i64,
    pid: i64,
    /// Rows that the page still has room for.
    left: usize,
    may_show: F,
}

impl<F: FnMut(&Columns<'_>) -> bool> Page<F> {
    /// Breaks at a row that may not be shown.
    fn read(mut self, table: &mut OpenTable, ranges: &[Range], answer: &mut Answer) -> ControlFlow<()> {
        for Range { from, is_from_included, below } in ranges {
            let key: [Key; CONDITIONS] = [
                Key::int8(PID, self.pid),
                Key::text_from(NAME, from, *is_from_included),
                Key::text_below(NAME, below),
                Key::int8(TS, 0),
            ];
            self.read_range(table, &mut ScanKeys::new(&key), answer)?;
        }
        ControlFlow::Continue(())
    }

    fn read_range(&mut self, table: &mut OpenTable, key: &mut ScanKeys, answer: &mut Answer) -> ControlFlow<()> {
        let mut shown = ControlFlow::Continue(());
        if self.left == 0 {
            return shown;
        }
        let OpenTable { probe, copied, .. } = table;
        probe.scan(key, |row| {
            pgrx::check_for_interrupts!();
            // Directory 0 has the roots of all namespaces.
            if self.pid != 0 && int8(row.datum(NS)) != Some(self.ns) {
                return true;
            }
            if !(self.may_show)(row) {
                shown = ControlFlow::Break(());
                return false;
            }
            answer.copy(row, copied);
            answer.put();
            self.left -= 1;
            self.left > 0
        });
        shown
    }
}

/// Whether a directory waits for the worker. On Citus any node may have the row.
fn are_directories_queued() -> bool {
    if is_distributed() {
        return call_function(c"are_directories_queued", &[], &[]).is_some_and(|are| are.value() != 0);
    }
    let (table, index) = (catalog::table(c"prune_queue"), catalog::table(c"prune_queue_queued"));
    // SAFETY: the calling statement has an active snapshot, and the index is the table's.
    unsafe { !is_empty(table, index, pg_sys::GetActiveSnapshot()) }
}
