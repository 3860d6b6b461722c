//! How `mantle.mkdir` and `mantle.put_object` are entered. Both are functions of this library, so that new entries against
//! which nothing speaks are made without plpgsql or SPI around them, which cost a single put more than its rows do. All else
//! is handed over to the SQL function for all cases (`sql/verbs/mkdir.sql`, `put_object.sql`).
//!
//! It is handed over as PostgreSQL calls a function, with this call's arguments and its place for rows, out of a frame that
//! has nothing to drop: so an error raised there keeps its SQLSTATE, which it would lose in pgrx (`guard.rs`).
//!
//! Steps are called by their SQL names: what is put around one in a database (tests hold verbs there) is met here too.

use std::ffi::CStr;

use pgrx::{pg_sys, prelude::*};

use crate::postgres::call::{Arguments, call_step, nullable, prepare};

const INT8S: pg_sys::Oid = pg_sys::INT8ARRAYOID;
const TEXTS: pg_sys::Oid = pg_sys::TEXTARRAYOID;

/// One of the two. Its arguments begin: principal, ns, pid, name, id; all are arrays.
pub struct Verb {
    /// The function for all cases: it has the verb's arguments, then the numbers of the elements made here, or NULL when the
    /// call was not begun, and then a fault, if that was why.
    pub fallback: &'static CStr,
    /// Types of the arguments of that one.
    pub fallback_types: &'static [pg_sys::Oid],
    /// Makes new entries; answers the numbers of those made, from 1. `None`: not even begun, the arrays do not fit.
    pub fast_path: fn(&Arguments) -> Option<Vec<i32>>,
}

/// What is left to do when the fast path is over.
#[derive(Clone, Copy)]
enum Next {
    Return,
    Fallback(pg_sys::FunctionCallInfo),
}

impl Verb {
    const PID: usize = 2;
    const NAME: usize = 3;
    const ID: usize = 4;

    /// # Safety
    /// `call` is PostgreSQL's, of a function that is declared with this verb's arguments and answers rows.
    pub unsafe fn enter(&self, call: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
        // SAFETY: whatever unwinds in there is raised as an error of PostgreSQL. What comes after calls a function as
        // PostgreSQL does; that may leave by a long jump, and passes nothing that would have to be dropped.
        unsafe {
            let next = pg_sys::panic::pgrx_extern_c_guard(|| self.run_fast_path(&Arguments(call)));
            (*call).isnull = true;
            match next {
                Next::Fallback(fallback) => {
                    (*(*fallback).flinfo).fn_addr.map_or(pg_sys::Datum::from(0_usize), |f| f(fallback))
                }
                Next::Return => pg_sys::Datum::from(0_usize),
            }
        }
    }

    fn run_fast_path(&self, call: &Arguments) -> Next {
        let fault = call_step(c"latch_batch", &[INT8S, TEXTS], &[call.raw(Self::PID), call.raw(Self::NAME)]);
        if fault.is_some() {
            return self.prepare_fallback(call, None, fault);
        }
        let Some(made) = (self.fast_path)(call) else { return self.prepare_fallback(call, None, None) };
        let is_all = call.get::<Array<i64>>(Self::ID).is_some_and(|ids| ids.len() == made.len());
        if !is_all || call_step(c"placement_fault", &[INT8S], &[call.raw(Self::PID)]).is_some() {
            return self.prepare_fallback(call, Some(made), None);
        }
        answer(call, &made, &call.get(Self::ID));
        Next::Return
    }

    /// The call of the function for all cases.
    fn prepare_fallback(&self, call: &Arguments, made: Option<Vec<i32>>, fault: Option<String>) -> Next {
        let fallback = prepare(self.fallback, self.fallback_types);
        // SAFETY: that call has two arguments more than this one.
        unsafe {
            let arguments = (*fallback).args.as_mut_ptr();
            let count = call.count();
            for at in 0..count {
                *arguments.add(at) = call.raw(at);
            }
            *arguments.add(count) = nullable(made.into_datum());
            *arguments.add(count + 1) = nullable(fault.into_datum());
            (*fallback).context = (*call.0).context;
            (*fallback).resultinfo = (*call.0).resultinfo;
            (*fallback).fncollation = (*call.0).fncollation;
        }
        Next::Fallback(fallback)
    }
}

/// Rows: number, code, id, version, replayed, then what an entry just made has not.
fn answer(call: &Arguments, made: &[i32], ids: &Option<Array<i64>>) {
    // SAFETY: makes the place for rows that the caller expects, raises when it expects none; each row is as wide as it.
    unsafe {
        pg_sys::InitMaterializedSRF(call.0, pg_sys::MAT_SRF_USE_EXPECTED_DESC);
        let rows = (*call.0).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        let width = (*(*rows).setDesc).natts as usize;
        for number in made {
            let id = ids.as_ref().and_then(|ids| ids.get(*number as usize - 1)).flatten();
            let given = [number.into_datum(), None, id.into_datum(), 1_i64.into_datum(), false.into_datum()];
            let values = given.into_iter().chain(std::iter::repeat(None)).take(width).map(nullable);
            let (mut values, mut nulls): (Vec<_>, Vec<_>) = values.map(|v| (v.value, v.isnull)).unzip();
            pg_sys::tuplestore_putvalues((*rows).setResult, (*rows).setDesc, values.as_mut_ptr(), nulls.as_mut_ptr());
        }
    }
}

/// The symbols by which PostgreSQL calls a verb: the function, and that it is called by the current convention.
macro_rules! verb {
    ($name:ident, $convention:ident, $verb:expr) => {
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub extern "C" fn $convention() -> &'static pgrx::pg_sys::Pg_finfo_record {
            &pgrx::pg_sys::Pg_finfo_record { api_version: 1 }
        }

        /// Called by PostgreSQL.
        ///
        /// # Safety
        /// See [`crate::verbs::entry::Verb::enter`].
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(call: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
            // SAFETY: as declared in `sql/verbs`.
            unsafe { $verb.enter(call) }
        }
    };
}
pub(crate) use verb;
