//! Lookups in the system catalogs.

use std::{cell::RefCell, ffi::CStr};

use pgrx::{pg_sys, prelude::*};

/// Tables whose numbers a session remembers. On Citus each shard is one.
const TABLES_KEPT_MAX: usize = 64;

thread_local! {
    static TABLES: RefCell<Vec<(Box<CStr>, pg_sys::Oid)>> = const { RefCell::new(Vec::new()) };
}

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

/// A table of the extension's schema; raises if there is none. It is looked for once, and again after a change of it.
pub fn table(name: &CStr) -> pg_sys::Oid {
    let known = TABLES.with_borrow(|tables| tables.iter().find(|(known, _)| **known == *name).map(|(_, table)| *table));
    known.unwrap_or_else(|| {
        let table = find_table(name);
        TABLES.with_borrow_mut(|tables| {
            if tables.len() >= TABLES_KEPT_MAX {
                tables.clear();
            }
            tables.push((name.into(), table));
        });
        table
    })
}

/// Forgets a table that was changed, renamed or dropped; all for `InvalidOid`. Called by PostgreSQL.
pub fn forget(relation: pg_sys::Oid) {
    TABLES.with_borrow_mut(|tables| tables.retain(|(_, table)| relation != pg_sys::InvalidOid && *table != relation));
}

fn find_table(name: &CStr) -> pg_sys::Oid {
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
