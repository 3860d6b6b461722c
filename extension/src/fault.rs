//! Error codes on their way from Rust to SQL.
//!
//! pgrx can raise only PostgreSQL's own SQLSTATEs, and loses others that pass through it. So functions answer a code,
//! and SQL raises it: `PERFORM mantle.raise_fault(mantle.latch_…(…))`. That is STRICT, so for NULL it is not called.

use mantle_types::ErrorCode;
use pgrx::prelude::*;

/// A SQLSTATE to raise or return; `None` if there is no fault.
pub type Fault = Option<&'static str>;

pub fn sqlstate(code: ErrorCode) -> &'static str {
    code.row().sqlstate
}

/// Name and meaning of one of our SQLSTATEs.
#[pg_extern(immutable, parallel_safe, strict)]
fn error_meaning(sqlstate: &str) -> Option<String> {
    ErrorCode::from_sqlstate(sqlstate).map(|code| format!("{}: {}", code.row().name, code.row().meaning))
}
