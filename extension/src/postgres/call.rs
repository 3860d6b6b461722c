//! Arguments of the SQL function that is running, and calls of other SQL functions without SPI.

use std::{ffi::CStr, mem};

use pgrx::{pg_sys, prelude::*};

use super::{catalog::schema, row::Value};

/// The arguments of a call, numbered from 0.
pub struct Arguments(pub pg_sys::FunctionCallInfo);

impl Arguments {
    /// `None` if the argument is NULL.
    pub fn get<T: FromDatum>(&self, at: usize) -> Option<T> {
        let argument = self.raw(at);
        // SAFETY: the SQL function is declared with this type.
        unsafe { T::from_datum(argument.value, argument.isnull) }
    }

    /// The elements of an array, not converted; `None` if the array is NULL.
    pub fn elements(&self, at: usize, of: pg_sys::Oid) -> Option<Vec<Value>> {
        let argument = self.raw(at);
        if argument.isnull {
            return None;
        }
        // SAFETY: the SQL function is declared with an array of this type. The elements live as long as the memory
        // context of the running function.
        unsafe {
            let array = pg_sys::pg_detoast_datum(argument.value.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
            let (mut width, mut by_value, mut align) = (0, false, 0);
            pg_sys::get_typlenbyvalalign(of, &mut width, &mut by_value, &mut align);
            let (mut values, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
            pg_sys::deconstruct_array(array, of, width.into(), by_value, align, &mut values, &mut nulls, &mut count);
            Some((0..count as usize).map(|at| (!*nulls.add(at)).then_some(*values.add(at))).collect())
        }
    }

    /// As [`elements`](Self::elements), of an array whose elements are numbered from 1 in one row; `None` for others.
    pub fn vector(&self, at: usize, of: pg_sys::Oid) -> Option<Vec<Value>> {
        let argument = self.raw(at);
        if argument.isnull {
            return None;
        }
        // SAFETY: the SQL function is declared with an array. After its head come the lengths of its dimensions, then
        // their lower bounds.
        let is_plain = unsafe {
            let array = pg_sys::pg_detoast_datum(argument.value.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
            let bounds = array.add(1).cast::<i32>();
            (*array).ndim == 0 || (*array).ndim == 1 && *bounds.add(1) == 1
        };
        if is_plain { self.elements(at, of) } else { None }
    }

    pub fn raw(&self, at: usize) -> pg_sys::NullableDatum {
        // SAFETY: the number is that of an argument of the function.
        unsafe { *(*self.0).args.as_ptr().add(at) }
    }

    pub fn count(&self) -> usize {
        // SAFETY: the call is running.
        unsafe { (*self.0).nargs as usize }
    }
}

/// Runs `work` in the guard that turns a panic into an error of PostgreSQL, then the call that it answers, if any, in
/// place of the one that is running: with its result set, from a frame that has nothing to drop. So that call's errors
/// keep their SQLSTATE, which pgrx would lose (see `fault.rs`).
///
/// # Safety
/// PostgreSQL makes this call, of a function that returns rows. The answered call has the same result set.
pub unsafe fn run_or_call(
    call: pg_sys::FunctionCallInfo,
    work: impl FnOnce(&Arguments) -> Option<pg_sys::FunctionCallInfo>,
) -> pg_sys::Datum {
    // SAFETY: the answered call is made as PostgreSQL calls a function; it may leave by a long jump, which skips nothing
    // that must be dropped.
    unsafe {
        let work = std::panic::AssertUnwindSafe(work);
        let other = pg_sys::panic::pgrx_extern_c_guard(move || { work }.0(&Arguments(call)));
        (*call).isnull = true;
        match other.and_then(|other| (*(*other).flinfo).fn_addr.map(|run| (run, other))) {
            Some((run, other)) => run(other),
            None => pg_sys::Datum::null(),
        }
    }
}

/// Prepares a call in place of the one that is running, with its result set; the caller fills in the arguments.
pub fn prepare_instead(call: &Arguments, name: &CStr, types: &[pg_sys::Oid]) -> pg_sys::FunctionCallInfo {
    let other = prepare(name, types);
    // SAFETY: both calls are alive.
    unsafe {
        (*other).context = (*call.0).context;
        (*other).resultinfo = (*call.0).resultinfo;
        (*other).fncollation = (*call.0).fncollation;
    }
    other
}

/// The symbols by which PostgreSQL calls a function that `sql/` declares in language C: the function, and its calling
/// convention.
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
        /// See [`crate::postgres::call::run_or_call`].
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(call: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
            // SAFETY: `sql/` declares the function so that it may be called like this.
            unsafe { $crate::postgres::call::run_or_call(call, $run) }
        }
    };
}
pub(crate) use c_function;

/// Calls a step that answers a SQLSTATE or NULL. A strict step with a NULL argument answers NULL.
pub fn call_step(name: &CStr, types: &[pg_sys::Oid], arguments: &[pg_sys::NullableDatum]) -> Option<String> {
    let call = prepare(name, types);
    // SAFETY: the step has these arguments. It may raise, so it is called in pgrx's guard.
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

/// Calls a function without arguments that answers a boolean; NULL is false.
pub fn call_flag(name: &CStr) -> bool {
    let call = prepare(name, &[]);
    // SAFETY: the function has no arguments. It may raise, so it is called in pgrx's guard.
    unsafe {
        let Some(run) = (*(*call).flinfo).fn_addr else { return false };
        let answer = pg_sys::ffi::pg_guard_ffi_boundary(|| run(call));
        !(*call).isnull && answer.value() != 0
    }
}

/// Prepares a call of a function of schema `mantle`; the caller fills in the arguments. It lives as long as the memory
/// context of the running function.
pub fn prepare(name: &CStr, types: &[pg_sys::Oid]) -> pg_sys::FunctionCallInfo {
    // SAFETY: the keys have the types of the catalog's index; the allocation has room for these arguments.
    unsafe {
        let function = pg_sys::GetSysCacheOid(
            pg_sys::SysCacheIdentifier::PROCNAMEARGSNSP as i32,
            pg_sys::Anum_pg_proc_oid as pg_sys::AttrNumber,
            name.as_ptr().into(),
            pg_sys::buildoidvector(types.as_ptr(), types.len() as i32).into(),
            schema().into(),
            pg_sys::Datum::null(),
        );
        if function == pg_sys::InvalidOid {
            pgrx::error!("function mantle.{} does not exist", name.to_string_lossy());
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

pub fn nullable(value: Value) -> pg_sys::NullableDatum {
    pg_sys::NullableDatum { value: value.unwrap_or(pg_sys::Datum::null()), isnull: value.is_none() }
}
