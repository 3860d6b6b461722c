//! Functions of older versions' scripts that this library no longer has. PostgreSQL refuses to create a function in C
//! whose symbol is missing, so `CREATE EXTENSION mantle VERSION '0.1.0'`, from which the upgrade is tested, needs them;
//! and between the restart and `ALTER EXTENSION mantle UPDATE` a call says what to do. No SQL is made for them, and
//! none reads arguments.

use pgrx::{pg_sys::panic::ErrorReport, prelude::*};

fn refuse() {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        "this function of the extension mantle is of an older version than the server's library",
        function_name!(),
    )
    .set_hint("ALTER EXTENSION mantle UPDATE, in this database.")
    .report(PgLogLevel::ERROR);
}

/// Of 0.1.0.
#[pg_extern(sql = false)]
fn is_set() {
    refuse()
}

/// Of 0.1.0.
#[pg_extern(sql = false)]
fn try_latch_removal() {
    refuse()
}
