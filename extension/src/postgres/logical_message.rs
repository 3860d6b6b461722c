//! Logical messages in the WAL. They are written by the C function, not by `pg_logical_emit_message`: nobody else may
//! call that one (P6).

use std::ffi::{CString, c_char};

use pgrx::pg_sys;

// Not bound by pgrx. It may raise, so it is called in pgrx's guard.
unsafe extern "C-unwind" {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    fn LogLogicalMessage(prefix: *const c_char, message: *const c_char, size: usize, transactional: bool) -> u64;
    #[cfg(feature = "pg17")]
    fn LogLogicalMessage(
        prefix: *const c_char,
        message: *const c_char,
        size: usize,
        transactional: bool,
        flush: bool,
    ) -> u64;
}

/// Writes a transactional message: readers receive it at commit, never after a rollback.
pub fn log_message(prefix: &str, bytes: &[u8]) {
    let prefix = CString::new(prefix).expect("the prefix has no NUL");
    // SAFETY: both pointers outlive the call, which copies the bytes into the WAL.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            #[cfg(any(feature = "pg15", feature = "pg16"))]
            LogLogicalMessage(prefix.as_ptr(), bytes.as_ptr().cast(), bytes.len(), true);
            #[cfg(feature = "pg17")]
            LogLogicalMessage(prefix.as_ptr(), bytes.as_ptr().cast(), bytes.len(), true, false);
        });
    }
}
