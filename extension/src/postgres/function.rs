//! Functions that `sql/` declares in language C: how PostgreSQL calls them, and how they answer.
//!
//! A function may ask for another call in place of its own, such as its fallback. That call is made as PostgreSQL calls a
//! function, from a frame that has nothing to drop. So its errors keep their SQLSTATE, which pgrx would lose (see `fault.rs`).

use pgrx::pg_sys;

use super::{
    call::{Arguments, nullable, prepare},
    row::{Value, value},
};

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
        /// See [`crate::postgres::function::enter`].
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(call: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
            // SAFETY: `sql/` declares the function so.
            unsafe { $crate::postgres::function::enter(call, $run) }
        }
    };
}
pub(crate) use c_function;
