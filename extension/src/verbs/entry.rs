//! Entry of a verb: latches, then the fast path, then the SQL fallback for the elements that are left.
//!
//! The verbs are C functions, so that new entries are made without plpgsql or SPI, which cost a single put more than
//! its rows. The fallback is called as PostgreSQL calls a function, with this call's arguments and result set, from a
//! frame that has nothing to drop. So its errors keep their SQLSTATE, which pgrx would lose (see `fault.rs`).
//!
//! Steps are called by their SQL names, so that replacing one in a database works here too; tests do that.

use std::ffi::CStr;

use pgrx::{pg_sys, prelude::*};

use super::{elements::EntryArguments, fast_path::Made};
use crate::postgres::{
    call::{Arguments, call_step, nullable, prepare},
    row::{Value, value},
};

const INT8S: pg_sys::Oid = pg_sys::INT8ARRAYOID;
const TEXTS: pg_sys::Oid = pg_sys::TEXTARRAYOID;

/// A verb that makes new entries.
pub struct Verb {
    pub arguments: EntryArguments,
    /// The SQL function for all other cases. It has the verb's arguments and two more: the numbers of the elements made
    /// here (NULL if the fast path did not begin), and the fault that kept it from beginning, if any. The modes that it gets
    /// are less what the namespaces take away, if the fast path began.
    pub fallback: &'static CStr,
    pub fallback_types: &'static [pg_sys::Oid],
    /// Makes new entries. `None` if it did not begin because the arrays do not fit.
    pub fast_path: fn(&Arguments) -> Option<Made>,
}

impl Verb {
    pub fn run(&self, call: &Arguments) -> Done {
        let EntryArguments { verb, name, id, .. } = &self.arguments;
        let pids = call.raw(verb.pid.place());
        let fault = call_step(c"latch_batch", &[INT8S, TEXTS], &[pids, call.raw(name.place())]);
        if fault.is_some() {
            return self.fall_back(call, None, fault);
        }
        let Some(made) = (self.fast_path)(call) else { return self.fall_back(call, None, None) };
        let ids: Option<Array<i64>> = call.get(id.place());
        let is_all = ids.as_ref().is_some_and(|ids| ids.len() == made.numbers.len());
        if !is_all || call_step(c"placement_fault", &[INT8S], &[pids]).is_some() {
            return self.fall_back(call, Some(made), None);
        }
        let rows = made.numbers.iter().map(|number| {
            let id = ids.as_ref().and_then(|ids| ids.get(*number as usize - 1)).flatten();
            vec![value(*number), None, value(id), value(1_i64), value(false)]
        });
        answer_rows(call, rows)
    }

    fn fall_back(&self, call: &Arguments, made: Option<Made>, fault: Option<String>) -> Done {
        let (numbers, modes) = made.map(|made| (made.numbers, made.modes)).unzip();
        let more = [nullable(numbers.into_datum()), nullable(fault.into_datum())];
        let fallback = call.pass_to(self.fallback, self.fallback_types, &more);
        if let Some(modes) = modes {
            // SAFETY: the fallback has this argument.
            unsafe {
                *(*fallback).args.as_mut_ptr().add(self.arguments.mode.place()) = nullable(modes.into_datum());
            }
        }
        Done::Call(fallback)
    }
}

/// How a call of a C function goes on after its part in Rust.
#[derive(Clone, Copy)]
pub enum Done {
    /// This is its result.
    Answer(pg_sys::Datum),
    /// Its rows are in the call's result set.
    Rows,
    /// This call gives the result, or raises the error.
    Call(pg_sys::FunctionCallInfo),
}

/// Runs the part of a C function that is in Rust, then the call that it asks for.
///
/// # Safety
/// PostgreSQL makes this call, of a function that is declared as `run` expects.
pub unsafe fn enter(call: pg_sys::FunctionCallInfo, run: impl FnOnce(&Arguments) -> Done) -> pg_sys::Datum {
    // SAFETY: the guard turns a panic into an error of PostgreSQL. After it, the other function is called as PostgreSQL calls
    // one; it may leave by a long jump, which skips nothing that must be dropped.
    unsafe {
        match pg_sys::panic::pgrx_extern_c_guard(|| run(&Arguments(call))) {
            Done::Answer(answer) => answer,
            Done::Rows => {
                (*call).isnull = true;
                pg_sys::Datum::null()
            }
            Done::Call(next) => {
                let answer = (*(*next).flinfo).fn_addr.map_or(pg_sys::Datum::null(), |run| run(next));
                (*call).isnull = (*next).isnull;
                answer
            }
        }
    }
}

/// Raises a fault that is found after the writes.
pub fn raise(fault: &str) -> Done {
    let call = prepare(c"raise_fault", &[pg_sys::TEXTOID]);
    // SAFETY: the call has room for one argument.
    unsafe { *(*call).args.as_mut_ptr() = nullable(value(fault)) };
    Done::Call(call)
}

/// Answers rows; columns that are missing at their ends are NULL.
pub fn answer_rows(call: &Arguments, rows: impl Iterator<Item = Vec<Value>>) -> Done {
    // SAFETY: InitMaterializedSRF raises unless the caller expects rows; each row has the width of the expected ones.
    unsafe {
        pg_sys::InitMaterializedSRF(call.0, pg_sys::MAT_SRF_USE_EXPECTED_DESC);
        let result = (*call.0).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        let width = (*(*result).setDesc).natts as usize;
        for mut row in rows {
            row.resize(width, None);
            let (mut values, mut nulls): (Vec<_>, Vec<_>) =
                row.into_iter().map(nullable).map(|v| (v.value, v.isnull)).unzip();
            pg_sys::tuplestore_putvalues(
                (*result).setResult,
                (*result).setDesc,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
        }
    }
    Done::Rows
}

/// Answers the OUT parameters of a function that answers one row.
pub fn answer_row(call: &Arguments, row: &[Value]) -> Done {
    // SAFETY: the function is declared with as many OUT parameters of these types.
    unsafe {
        let mut of = std::ptr::null_mut();
        pg_sys::get_call_result_type(call.0, std::ptr::null_mut(), &mut of);
        let of = pg_sys::BlessTupleDesc(of);
        assert_eq!((*of).natts as usize, row.len(), "OUT parameters");
        let (mut values, mut nulls): (Vec<_>, Vec<_>) =
            row.iter().map(|value| nullable(*value)).map(|v| (v.value, v.isnull)).unzip();
        let tuple = pg_sys::heap_form_tuple(of, values.as_mut_ptr(), nulls.as_mut_ptr());
        Done::Answer(pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data))
    }
}

/// The symbols by which PostgreSQL calls a C function: the function, which `$run` carries out, and its calling convention.
macro_rules! c_function {
    ($name:ident, $convention:ident, $run:expr) => {
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub extern "C" fn $convention() -> &'static pgrx::pg_sys::Pg_finfo_record {
            &pgrx::pg_sys::Pg_finfo_record { api_version: 1 }
        }

        /// Called by PostgreSQL.
        ///
        /// # Safety
        /// See [`crate::verbs::entry::enter`].
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(call: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
            // SAFETY: `sql/verbs` declares the function so.
            unsafe { $crate::verbs::entry::enter(call, $run) }
        }
    };
}
pub(crate) use c_function;

/// Defines a verb with its `fast_path`, and the symbols by which PostgreSQL calls it.
macro_rules! verb {
    ($verb:ident, $static:ident, $fallback:literal, $name:ident, $convention:ident) => {
        static $static: $crate::verbs::entry::Verb = $crate::verbs::entry::Verb {
            arguments: $crate::verbs::elements::EntryArguments {
                verb: $verb::VERB,
                name: $verb::NAME,
                id: $verb::ID,
                owner: $verb::OWNER,
                grp: $verb::GRP,
                mode: $verb::MODE,
            },
            fallback: $fallback,
            fallback_types: &const {
                $crate::verbs::elements::fallback_types::<{ $verb::COUNT + 2 }>(&$verb::VERB, pgrx::pg_sys::TEXTOID)
            },
            fast_path,
        };

        $crate::verbs::entry::c_function!($name, $convention, |call| $static.run(call));
    };
}
pub(crate) use verb;
