//! The beginning of every verb: latches, then the fast path, then the SQL fallback for the remaining elements.
//!
//! The verbs are C functions, so that new entries are made without plpgsql or SPI: for a single put these cost more
//! than its rows. The fallback is called in place of the verb (`postgres/function.rs`).
//!
//! The fast path calls steps by their SQL names. So a test can replace a step in its database, and the fast path uses
//! the replacement too.

use std::ffi::CStr;

use pgrx::{pg_sys, prelude::*};

use super::{elements::EntryArguments, fast_path::Made};
use crate::postgres::{
    advisory_lock::LockTimeoutLimit,
    call::{Arguments, call_step, nullable},
    function::{Done, answer_rows},
    row::value,
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
    /// Takes latches that only this verb needs, after those of directories and names.
    pub latch_more: fn(&Arguments) -> Option<String>,
    /// Makes new entries. `None` if it did not begin because the arrays do not fit.
    pub fast_path: fn(&Arguments) -> Option<Made>,
}

/// How long a verb waits for each lock before it gives up, which is before its commit (P18). As `{as_change}` says it in SQL,
/// and the fallbacks say it for themselves.
const LOCK_WAIT_MS: i32 = 2_000;

impl Verb {
    pub fn run(&self, call: &Arguments) -> Done {
        let _limit = LockTimeoutLimit::set_if_none(LOCK_WAIT_MS);
        let EntryArguments { verb, name, id, .. } = &self.arguments;
        let pids = call.raw(verb.pid.place());
        let fault = call_step(c"latch_batch", &[INT8S, TEXTS], &[pids, call.raw(name.place())]);
        let fault = fault.or_else(|| (self.latch_more)(call));
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

/// Defines a verb with its `latch_more` and `fast_path`, and the symbols by which PostgreSQL calls it.
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
            latch_more,
            fast_path,
        };

        $crate::postgres::function::c_function!($name, $convention, |call| $static.run(call));
    };
}
pub(crate) use verb;
