//! How a fault leaves Rust.
//!
//! Rust cannot raise a SQLSTATE of our own class (pgrx knows PostgreSQL's only, also of an error that comes through it), so
//! functions answer a code, and `mantle.fault` (plpgsql, STRICT: not even called for NULL) raises it:
//! `PERFORM mantle.fault(mantle.latch_…(…))`.

use mantle_types::ErrorCode;
use pgrx::prelude::*;

/// A SQLSTATE to raise or return, `None` when all is well.
pub type Fault = Option<&'static str>;

/// The SQLSTATE of a code.
pub fn sqlstate(code: ErrorCode) -> &'static str {
    code.row().sqlstate
}

/// The meaning of one of our SQLSTATEs, for messages.
#[pg_extern(immutable, parallel_safe, strict)]
fn error_meaning(sqlstate: &str) -> Option<String> {
    ErrorCode::from_sqlstate(sqlstate).map(|code| format!("{}: {}", code.row().name, code.row().meaning))
}
