//! Calls of SQL functions: the arguments of the one that is running, and calls of other ones without SPI around them.

use std::{ffi::CStr, mem};

use pgrx::{pg_sys, prelude::*};

use super::{catalog::schema, row::Value};

/// A call's arguments, by their place from 0.
pub struct Arguments(pub pg_sys::FunctionCallInfo);

impl Arguments {
    /// One of them; NULL is none.
    pub fn get<T: FromDatum>(&self, at: usize) -> Option<T> {
        let argument = self.raw(at);
        // SAFETY: of the type that the SQL function is declared with.
        unsafe { T::from_datum(argument.value, argument.isnull) }
    }

    /// An array's elements as they are; NULL is none.
    pub fn elements(&self, at: usize, of: pg_sys::Oid) -> Option<Vec<Value>> {
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

    /// One of them, NULL or not.
    pub fn raw(&self, at: usize) -> pg_sys::NullableDatum {
        // SAFETY: places are those of the function's own arguments.
        unsafe { *(*self.0).args.as_ptr().add(at) }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        // SAFETY: the call is under way.
        unsafe { (*self.0).nargs as usize }
    }
}

/// Calls a step that answers a fault.
pub fn call_step(name: &CStr, types: &[pg_sys::Oid], arguments: &[pg_sys::NullableDatum]) -> Option<String> {
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
pub fn prepare(name: &CStr, types: &[pg_sys::Oid]) -> pg_sys::FunctionCallInfo {
    // SAFETY: keys are as the catalog's index has them; what is allocated is as large as a call with these arguments.
    unsafe {
        let function = pg_sys::GetSysCacheOid(
            pg_sys::SysCacheIdentifier::PROCNAMEARGSNSP as i32,
            pg_sys::Anum_pg_proc_oid as pg_sys::AttrNumber,
            name.as_ptr().into(),
            pg_sys::buildoidvector(types.as_ptr(), types.len() as i32).into(),
            schema().into(),
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

pub fn nullable(value: Value) -> pg_sys::NullableDatum {
    pg_sys::NullableDatum { value: value.unwrap_or(pg_sys::Datum::from(0_usize)), isnull: value.is_none() }
}
