//! `mantle.stat`: entries by place.

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
        row::{Value, value},
    },
};

/// Columns of the answer, from 0.
const ORD: usize = 0;
const CODE: usize = 1;
const NAME: usize = 2;
/// Conditions on the primary key.
pub const CONDITIONS: usize = 3;

c_function!(mantle_stat, pg_finfo_mantle_stat, |call| {
    match fast_path(call) {
        Some(()) => Done::Rows,
        None => fallback(call),
    }
});

fn fallback(call: &Arguments) -> Done {
    let types = [pg_sys::INT8ARRAYOID, pg_sys::INT8ARRAYOID, pg_sys::TEXTARRAYOID];
    let fallback = prepare_instead(call, c"stat_fallback", &types);
    // SAFETY: it has three arguments.
    unsafe {
        let arguments = (*fallback).args.as_mut_ptr();
        *arguments = nullable(value(vec![call.get::<i64>(0)]));
        *arguments.add(1) = call.raw(1);
        *arguments.add(2) = call.raw(2);
    }
    Done::Call(fallback)
}

/// Answers all elements, or none.
fn fast_path(call: &Arguments) -> Option<()> {
    let ns = call.get::<i64>(0).and_then(value);
    let (pids, names) = (call.vector(1, pg_sys::INT8OID)?, call.vector(2, pg_sys::TEXTOID)?);
    let mut tables = Tables::begin(CONDITIONS)?;
    let mut answer = Answer::begin(call);
    let element = |of: &[Value], at: usize| of.get(at).copied().flatten();
    let all = (0..pids.len().max(names.len())).try_for_each(|at| {
        stat(&mut tables, &mut answer, [ns, element(&pids, at), element(&names, at)])?;
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
fn stat(tables: &mut Tables<Copied>, answer: &mut Answer, [ns, pid, name]: [Value; 3]) -> Option<()> {
    pgrx::check_for_interrupts!();
    let is_found = match (ns, pid, name) {
        (Some(ns), Some(pid), Some(name)) => match tables.of(int8(Some(pid))?, |table| answer.copied(table)) {
            Found::Here(table) => table.find([ns, pid, name], |row, copied| answer.copy(row, copied)),
            Found::NotNow | Found::BySql => return None,
        },
        _ => false,
    };
    let code = if is_found { None } else { value(sqlstate(ErrorCode::NotFound)) };
    answer.set(CODE, code);
    Some(())
}
