//! Entry of a verb: latches, then the fast path, then the SQL fallback for the elements that are left.
//!
//! The verbs are C functions, so that new entries are made without plpgsql or SPI, which cost a single put more than
//! its rows. The fallback is called as PostgreSQL calls a function, with this call's arguments and result set (see
//! `postgres/call.rs`).
//!
//! Steps are called by their SQL names, so that replacing one in a database works here too; tests do that.

use std::ffi::CStr;

use pgrx::{pg_sys, prelude::*};

use super::{elements::EntryArguments, fast_path::Made};
use crate::postgres::call::{Arguments, call_step, nullable, prepare_instead};

const INT8S: pg_sys::Oid = pg_sys::INT8ARRAYOID;
const TEXTS: pg_sys::Oid = pg_sys::TEXTARRAYOID;

/// One of the two verbs.
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
    /// The call of the fallback, if it is needed.
    pub fn run_fast_path(&self, call: &Arguments) -> Option<pg_sys::FunctionCallInfo> {
        let EntryArguments { verb, name, id, .. } = &self.arguments;
        let pids = call.raw(verb.pid.place());
        let fault = call_step(c"latch_batch", &[INT8S, TEXTS], &[pids, call.raw(name.place())]);
        if fault.is_some() {
            return Some(self.prepare_fallback(call, None, fault));
        }
        let Some(made) = (self.fast_path)(call) else { return Some(self.prepare_fallback(call, None, None)) };
        let ids: Option<Array<i64>> = call.get(id.place());
        let is_all = ids.as_ref().is_some_and(|ids| ids.len() == made.numbers.len());
        if !is_all || call_step(c"placement_fault", &[INT8S], &[pids]).is_some() {
            return Some(self.prepare_fallback(call, Some(made), None));
        }
        answer(call, &made.numbers, &ids);
        None
    }

    fn prepare_fallback(
        &self,
        call: &Arguments,
        made: Option<Made>,
        fault: Option<String>,
    ) -> pg_sys::FunctionCallInfo {
        let fallback = prepare_instead(call, self.fallback, self.fallback_types);
        // SAFETY: the fallback has two arguments more than this call.
        unsafe {
            let arguments = (*fallback).args.as_mut_ptr();
            let count = call.count();
            for at in 0..count {
                *arguments.add(at) = call.raw(at);
            }
            let (numbers, modes) = made.map(|made| (made.numbers, made.modes)).unzip();
            if let Some(modes) = modes {
                *arguments.add(self.arguments.mode.place()) = nullable(modes.into_datum());
            }
            *arguments.add(count) = nullable(numbers.into_datum());
            *arguments.add(count + 1) = nullable(fault.into_datum());
        }
        fallback
    }
}

/// Answers the rows of new entries: number, code, id, version, replayed, then columns that are NULL for these.
fn answer(call: &Arguments, made: &[i32], ids: &Option<Array<i64>>) {
    // SAFETY: InitMaterializedSRF raises unless the caller expects rows; each row has the width of the expected ones.
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

/// Defines a verb with its `fast_path`, and the symbols by which PostgreSQL calls it: the function and its calling
/// convention.
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
            fallback_types: &const { $crate::verbs::elements::fallback_types::<{ $verb::COUNT + 2 }>(&$verb::VERB) },
            fast_path,
        };

        $crate::postgres::call::c_function!($name, $convention, |call| $static.run_fast_path(call));
    };
}
pub(crate) use verb;
