//! `mantle.list` and `mantle.list_filled`: a page of a directory's entries in name order.

use std::{ffi::CStr, ops::ControlFlow};

use pgrx::pg_sys;

use super::{
    answer::Answer,
    page::{CONDITIONS, Page, are_directories_queued, is_implicit},
    tables::{Found, Tables},
};
use crate::postgres::{
    call::Arguments,
    function::{Done, c_function},
    probe::Columns,
};

const ARGUMENTS: [pg_sys::Oid; 5] =
    [pg_sys::INT8OID, pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::INT4OID];

c_function!(mantle_list, pg_finfo_mantle_list, |call| run(call, c"list_fallback", |_| true));

// An implicit directory may hold no key only while a directory waits for the worker (P54).
c_function!(mantle_list_filled, pg_finfo_mantle_list_filled, |call| {
    let mut none_waits = false;
    run(call, c"list_filled_fallback", move |row| {
        let is_implicit = is_implicit(row);
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

fn fast_path(call: &Arguments, mut may_show: impl FnMut(&Columns<'_>) -> bool) -> Option<()> {
    let (ns, pid) = (call.get::<i64>(0)?, call.get::<i64>(1)?);
    let page = Page::new(ns, pid, call.get(2), call.get(3), call.get::<i32>(4)?)?;
    let mut tables = Tables::begin(CONDITIONS)?;
    let mut answer = Answer::begin(call);
    let read = match tables.of(pid, |table| answer.copied(table)) {
        Found::Here(table) => page.read(table, usize::MAX, |row, copied| {
            if !may_show(row) {
                return ControlFlow::Break(());
            }
            answer.copy(row, copied);
            answer.put();
            ControlFlow::Continue(())
        }),
        Found::NotNow | Found::BySql => ControlFlow::Break(()),
    };
    if read.is_break() || !tables.hold() {
        answer.discard();
        return None;
    }
    Some(())
}
