//! The settings of a background process' session.
//!
//! ALTER DATABASE and ALTER ROLE also affect a worker's session. A default such as
//! `default_transaction_isolation = 'serializable'` would make every step fail for ever. So a worker sets the settings
//! that its steps depend on, with precedence over both (as autovacuum does). `sql/admin/pin_settings.sql` does the same
//! for the services' roles.

use std::ffi::CStr;

use pgrx::pg_sys;

/// Names and values. What another module owns (plpgsql, Citus) may not be loaded yet; PostgreSQL then keeps the value for
/// it.
const PINNED: &[(&CStr, &CStr)] = &[
    (c"search_path", c"pg_catalog, pg_temp"),
    (c"default_transaction_isolation", c"read committed"),
    (c"default_transaction_read_only", c"off"),
    (c"default_transaction_deferrable", c"off"),
    (c"synchronous_commit", c"on"),
    (c"session_replication_role", c"origin"),
    (c"row_security", c"on"),
    (c"statement_timeout", c"0"),
    (c"lock_timeout", c"0"),
    (c"idle_in_transaction_session_timeout", c"0"),
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    (c"transaction_timeout", c"0"),
    (c"exit_on_error", c"off"),
    (c"datestyle", c"ISO, MDY"),
    (c"intervalstyle", c"postgres"),
    (c"standard_conforming_strings", c"on"),
    (c"array_nulls", c"on"),
    (c"transform_null_equals", c"off"),
    (c"plpgsql.extra_errors", c"none"),
    (c"citus.multi_shard_modify_mode", c"parallel"),
    (c"citus.multi_task_query_log_level", c"off"),
    (c"citus.enable_local_execution", c"on"),
    (c"citus.enable_router_execution", c"on"),
];

/// Sets them for this session, until it ends. Called once, after the connection.
pub fn pin_settings() {
    for (name, value) in PINNED {
        // SAFETY: both end with NUL; an error leaves through pgrx's guard.
        unsafe {
            pg_sys::SetConfigOption(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_OVERRIDE,
            );
        }
    }
}
