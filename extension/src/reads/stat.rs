//! `mantle.stat` and `mantle.stat_local`: entries by place.

use mantle_types::ErrorCode;
use pgrx::pg_sys;

use super::{
    answer::{Answer, Copied},
    tables::{Found, Tables, int8},
};
use crate::{
    fault::sqlstate,
    postgres::{
        call::{Arguments, nullable, prepare_instead},
        function::{Done, c_function},
        probe::Columns,
        row::{Value, value},
    },
};

/// Columns of the answer, from 0.
const ORD: usize = 0;
const CODE: usize = 1;
const NAME: usize = 2;
/// Columns of the MetaTable, from 1 (`sql/tables/meta.sql`).
const NS: i32 = 4;
const ID: i32 = 5;
/// Conditions on the primary key.
const CONDITIONS: usize = 3;

c_function!(mantle_stat, pg_finfo_mantle_stat, |call| {
    let ns = vec![call.get::<i64>(0).and_then(value)];
    match fast_path(call, &ns, NotNow::LeaveAll) {
        Some(()) => Done::Rows,
        None => fallback(call, value(ns.iter().map(|ns| int8(*ns)).collect::<Vec<_>>())),
    }
});

c_function!(mantle_stat_local, pg_finfo_mantle_stat_local, |call| {
    match call.vector(0, pg_sys::INT8OID).and_then(|ns| fast_path(call, &ns, NotNow::AnswerWrongNode)) {
        Some(()) => Done::Rows,
        None => fallback(call, Some(call.raw(0)).filter(|ns| !ns.isnull).map(|ns| ns.value)),
    }
});

/// What becomes of elements that this node cannot read at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NotNow {
    /// The fallback reads all elements.
    LeaveAll,
    AnswerWrongNode,
}

fn fallback(call: &Arguments, ns: Value) -> Done {
    let types = [pg_sys::INT8ARRAYOID, pg_sys::INT8ARRAYOID, pg_sys::TEXTARRAYOID];
    let fallback = prepare_instead(call, c"stat_fallback", &types);
    // SAFETY: it has three arguments.
    unsafe {
        let arguments = (*fallback).args.as_mut_ptr();
        *arguments = nullable(ns);
        *arguments.add(1) = call.raw(1);
        *arguments.add(2) = call.raw(2);
    }
    Done::Call(fallback)
}

/// Answers all elements, or none.
fn fast_path(call: &Arguments, ns: &[Value], not_now: NotNow) -> Option<()> {
    let (pids, names) = (call.vector(1, pg_sys::INT8OID)?, call.vector(2, pg_sys::TEXTOID)?);
    let mut tables = Tables::begin(CONDITIONS)?;
    let mut answer = Answer::begin(call);
    let element = |of: &[Value], at: usize| of.get(at).copied().flatten();
    let all = (0..pids.len().max(names.len())).try_for_each(|at| {
        let ns = element(ns, if ns.len() == 1 { 0 } else { at });
        stat(&mut tables, &mut answer, [ns, element(&pids, at), element(&names, at)], not_now)?;
        answer.set(ORD, value(at as i32 + 1));
        answer.set(NAME, element(&names, at));
        answer.put();
        Some(())
    });
    if all.is_none() || !tables.hold() {
        answer.discard();
        return None;
    }
    Some(())
}

/// Reads an element into the next row; its code if there is none. `None` if the fallback has to.
fn stat(tables: &mut Tables<Copied>, answer: &mut Answer, [ns, pid, name]: [Value; 3], not_now: NotNow) -> Option<()> {
    pgrx::check_for_interrupts!();
    let missing = Some(ErrorCode::NotFound);
    let code = match (ns, pid, name) {
        (Some(ns), Some(pid), Some(name)) => match tables.of(int8(Some(pid))?, |table| answer.copied(table)) {
            Found::Here(table) => {
                let is_wanted = |row: &Columns<'_>| row.datum(NS) == Some(ns) && row.datum(ID).is_some();
                missing.filter(|_| !table.find(pid, name, answer, is_wanted))
            }
            Found::NotNow if not_now == NotNow::AnswerWrongNode => Some(ErrorCode::WrongNode),
            Found::NotNow | Found::BySql => return None,
        },
        _ => missing,
    };
    answer.set(CODE, code.and_then(|code| value(sqlstate(code))));
    Some(())
}
