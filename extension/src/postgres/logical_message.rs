//! Logical messages in the WAL. They are written by the C function, not by `pg_logical_emit_message`: nobody else may
//! call that one (P6).

use std::ffi::CString;

use super::versions;

/// Writes a transactional message: readers receive it at commit, never after a rollback.
pub fn log_message(prefix: &str, bytes: &[u8]) {
    let prefix = CString::new(prefix).expect("the prefix has no NUL");
    // SAFETY: both pointers outlive the call, which copies the bytes into the WAL.
    unsafe { versions::log_logical_message(prefix.as_ptr(), bytes.as_ptr().cast(), bytes.len()) };
}
