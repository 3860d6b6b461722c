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

    /// A call of another function with these arguments, then more, in place of the one that is running.
    pub fn pass_to(
        &self,
        name: &CStr,
        types: &[pg_sys::Oid],
        more: &[pg_sys::NullableDatum],
    ) -> pg_sys::FunctionCallInfo {
        assert_eq!(types.len(), self.count() + more.len(), "arguments of mantle.{}", name.to_string_lossy());
        let call = prepare_instead(self, name, types);
        // SAFETY: the call has room for as many arguments as there are types.
        unsafe {
            let arguments = (*call).args.as_mut_ptr();
            for at in 0..self.count() {
                *arguments.add(at) = self.raw(at);
            }
            for (at, argument) in more.iter().enumerate() {
                *arguments.add(self.count() + at) = *argument;
            }
        }
        call
    }

    pub fn count(&self) -> usize {
        // SAFETY: the call is running.
        unsafe { (*self.0).nargs as usize }
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

/// Calls a step that answers a SQLSTATE or NULL. A strict step with a NULL argument answers NULL.
pub fn call_step(name: &CStr, types: &[pg_sys::Oid], arguments: &[pg_sys::NullableDatum]) -> Option<String> {
    // SAFETY: steps answer text.
    call_function(name, types, arguments).and_then(|fault| unsafe { String::from_datum(fault, false) })
}

/// Calls a function of schema `mantle`.
pub fn call_function(name: &CStr, types: &[pg_sys::Oid], arguments: &[pg_sys::NullableDatum]) -> Value {
    let call = prepare(name, types);
    // SAFETY: the function has these arguments. It may raise, so it is called in pgrx's guard.
    unsafe {
        let is_strict = (*(*call).flinfo).fn_strict;
        if is_strict && arguments.iter().any(|argument| argument.isnull) {
            return None;
        }
        for (at, argument) in arguments.iter().enumerate() {
            *(*call).args.as_mut_ptr().add(at) = *argument;
        }
        let run = (*(*call).flinfo).fn_addr?;
        let answer = pg_sys::ffi::pg_guard_ffi_boundary(|| run(call));
        (!(*call).isnull).then_some(answer)
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
