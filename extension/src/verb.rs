//! How `mantle.mkdir` and `mantle.put_object` are entered. Both are functions of this library, so that new entries against
//! which nothing speaks are made without plpgsql or SPI around them, which cost a single put more than its rows do. All else
//! is handed over to the SQL function for all cases (`sql/verbs/mkdir.sql`, `put_object.sql`).
//!
//! It is handed over as PostgreSQL calls a function, with this call's arguments and its place for rows, out of a frame that
//! has nothing to drop: so an error raised there keeps its SQLSTATE, which it would lose in pgrx (`guard.rs`).
//!
//! Steps are called by their SQL names: what is put around one in a database (tests hold verbs there) is met here too.

use std::{ffi::CStr, mem};

use pgrx::{pg_sys, prelude::*};

use crate::kept::Argument;

const INT8S: pg_sys::Oid = pg_sys::INT8ARRAYOID;
const TEXTS: pg_sys::Oid = pg_sys::TEXTARRAYOID;

/// A call's arguments, by their place from 0.
pub struct Arguments(pg_sys::FunctionCallInfo);

impl Arguments {
    /// One of them; NULL is none.
    pub fn get<T: FromDatum>(&self, at: usize) -> Option<T> {
        let argument = self.raw(at);
        // SAFETY: of the type that the SQL function is declared with.
        unsafe { T::from_datum(argument.value, argument.isnull) }
    }

    /// An array's elements as they are; NULL is none.
    pub fn elements(&self, at: usize, of: pg_sys::Oid) -> Option<Vec<Argument>> {
        let argument = self.raw(at);
        if argument.isnull {
            return None;
        }
        // SAFETY: an array of this type, as the SQL function is declared; what comes out of it lives as long as the memory
        // of the function that is running.
        unsafe {
            let array = pg_sys::pg_detoast_datum(argument.value.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
            let (mut width, mut by_value, mut align) = (0, false, 0);
            pg_sys::get_typlenbyvalalign(of, &mut width, &mut by_value, &mut align);
            let (mut values, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
            pg_sys::deconstruct_array(array, of, width.into(), by_value, align, &mut values, &mut nulls, &mut count);
            Some((0..count as usize).map(|at| (!*nulls.add(at)).then_some(*values.add(at))).collect())
        }
    }

    fn raw(&self, at: usize) -> pg_sys::NullableDatum {
        // SAFETY: places are those of the function's own arguments.
        unsafe { *(*self.0).args.as_ptr().add(at) }
    }

    fn count(&self) -> usize {
        // SAFETY: the call is under way.
        unsafe { (*self.0).nargs as usize }
    }
}

/// One of the two. Its arguments begin: principal, ns, pid, name, id; all are arrays.
pub struct Verb {
    /// The function for all cases: it has the verb's arguments, then the numbers of the elements made here, or NULL when the
    /// call was not begun, and then a fault, if that was why.
    pub rest: &'static CStr,
    /// Types of the arguments of that one.
    pub rest_types: &'static [pg_sys::Oid],
    /// Makes new entries; answers the numbers of those made, from 1. `None`: not even begun, the arrays do not fit.
    pub make: fn(&Arguments) -> Option<Vec<i32>>,
}

/// What is left to do when the short way is over.
#[derive(Clone, Copy)]
enum Next {
    Return,
    HandOver(pg_sys::FunctionCallInfo),
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
            let next = pg_sys::panic::pgrx_extern_c_guard(|| self.short_way(&Arguments(call)));
            (*call).isnull = true;
            match next {
                Next::HandOver(rest) => (*(*rest).flinfo).fn_addr.map_or(pg_sys::Datum::from(0_usize), |f| f(rest)),
                Next::Return => pg_sys::Datum::from(0_usize),
            }
        }
    }

    fn short_way(&self, call: &Arguments) -> Next {
        let fault = step(c"latch_batch", &[INT8S, TEXTS], &[call.raw(Self::PID), call.raw(Self::NAME)]);
        if fault.is_some() {
            return self.hand_over(call, None, fault);
        }
        let Some(made) = (self.make)(call) else { return self.hand_over(call, None, None) };
        let is_all = call.get::<Array<i64>>(Self::ID).is_some_and(|ids| ids.len() == made.len());
        if !is_all || step(c"placement_fault", &[INT8S], &[call.raw(Self::PID)]).is_some() {
            return self.hand_over(call, Some(made), None);
        }
        answer(call, &made, &call.get(Self::ID));
        Next::Return
    }

    /// The call of the function for all cases.
    fn hand_over(&self, call: &Arguments, made: Option<Vec<i32>>, fault: Option<String>) -> Next {
        let rest = prepare(self.rest, self.rest_types);
        // SAFETY: that call has two arguments more than this one.
        unsafe {
            let arguments = (*rest).args.as_mut_ptr();
            let count = call.count();
            for at in 0..count {
                *arguments.add(at) = call.raw(at);
            }
            *arguments.add(count) = nullable(made.into_datum());
            *arguments.add(count + 1) = nullable(fault.into_datum());
            (*rest).context = (*call.0).context;
            (*rest).resultinfo = (*call.0).resultinfo;
            (*rest).fncollation = (*call.0).fncollation;
        }
        Next::HandOver(rest)
    }
}

fn nullable(value: Option<pg_sys::Datum>) -> pg_sys::NullableDatum {
    pg_sys::NullableDatum { value: value.unwrap_or(pg_sys::Datum::from(0_usize)), isnull: value.is_none() }
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

/// Calls a step that answers a fault.
fn step(name: &CStr, types: &[pg_sys::Oid], arguments: &[pg_sys::NullableDatum]) -> Option<String> {
    let call = prepare(name, types);
    // SAFETY: the step has these arguments; it may raise, so it is called inside of pgrx's guard.
    unsafe {
        let is_strict = (*(*call).flinfo).fn_strict;
        if is_strict && arguments.iter().any(|argument| argument.isnull) {
            return None;
        }
        for (at, argument) in arguments.iter().enumerate() {
            *(*call).args.as_mut_ptr().add(at) = *argument;
        }
        let run = (*(*call).flinfo).fn_addr?;
        let fault = pg_sys::ffi::pg_guard_ffi_boundary(|| run(call));
        String::from_datum(fault, (*call).isnull)
    }
}

/// A call of one of our SQL functions, without its arguments. Lives as long as the memory of the function that is running.
fn prepare(name: &CStr, types: &[pg_sys::Oid]) -> pg_sys::FunctionCallInfo {
    // SAFETY: keys are as the catalog's index has them; what is allocated is as large as a call with these arguments.
    unsafe {
        let function = pg_sys::GetSysCacheOid(
            pg_sys::SysCacheIdentifier::PROCNAMEARGSNSP as i32,
            pg_sys::Anum_pg_proc_oid as pg_sys::AttrNumber,
            name.as_ptr().into(),
            pg_sys::buildoidvector(types.as_ptr(), types.len() as i32).into(),
            pg_sys::get_namespace_oid(c"mantle".as_ptr(), false).into(),
            pg_sys::Datum::from(0_usize),
        );
        if function == pg_sys::InvalidOid {
            pgrx::error!("mantle.{} is not there", name.to_string_lossy());
        }
        let info = pg_sys::palloc0(mem::size_of::<pg_sys::FmgrInfo>()).cast::<pg_sys::FmgrInfo>();
        pg_sys::fmgr_info(function, info);
        let size =
            mem::size_of::<pg_sys::FunctionCallInfoBaseData>() + types.len() * mem::size_of::<pg_sys::NullableDatum>();
        let call = pg_sys::palloc0(size).cast::<pg_sys::FunctionCallInfoBaseData>();
        (*call).flinfo = info;
        (*call).nargs = types.len() as i16;
        call
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
        /// See [`crate::verb::Verb::enter`].
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(call: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
            // SAFETY: as declared in `sql/verbs`.
            unsafe { $verb.enter(call) }
        }
    };
}
pub(crate) use verb;
