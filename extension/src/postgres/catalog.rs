//! Lookups in the system catalogs.

use std::ffi::CStr;

use pgrx::{pg_sys, prelude::*};

/// The extension's schema.
pub fn schema() -> pg_sys::Oid {
    // SAFETY: the name ends with NUL; an error (no such schema) leaves through pgrx's guard.
    unsafe { pg_sys::get_namespace_oid(c"mantle".as_ptr(), false) }
}

/// A table or PostgreSQL index; `InvalidOid` if there is none.
pub fn find_relation(name: &CStr, schema: pg_sys::Oid) -> pg_sys::Oid {
    // SAFETY: the name ends with NUL; an error leaves through pgrx's guard.
    unsafe { pg_sys::get_relname_relid(name.as_ptr(), schema) }
}

/// A table of the extension's schema; raises if there is none.
pub fn table(name: &CStr) -> pg_sys::Oid {
    let table = find_relation(name, schema());
    if table == pg_sys::InvalidOid {
        let message = format!("relation \"mantle.{}\" does not exist", name.to_string_lossy());
        pgrx::ereport!(ERROR, PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE, message);
    }
    table
}

/// Processes the invalidation messages of other sessions, as every statement does before it begins.
pub fn accept_invalidations() {
    // SAFETY: called in a transaction; an error of a callback leaves through pgrx's guard.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}
