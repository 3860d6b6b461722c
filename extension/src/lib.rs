//! TafDB: Mantle's MetaTable as a PostgreSQL extension.
//!
//! The SQL objects have their homes under `sql/`, one file each, and are put together in order by [`sql`]. Rust has what
//! SQL cannot do: latches under lock tags of our own, the change-stream message, name rules shared with the gateway, the
//! walk behind `mantle.list_tree`, row-level security, settings and the background workers.

pub mod citus;
pub mod counts;
pub mod create;
pub mod distribution;
pub mod guard;
pub mod import_plan;
pub mod kept;
pub mod latch;
pub mod launcher;
pub mod lease;
pub mod name;
pub mod probe;
pub mod proof;
pub mod request_age;
pub mod retired;
pub mod row_security;
pub mod settings;
pub mod sql;
pub mod stream;
pub mod tree;
pub mod verb;
pub mod walk;
pub mod worker;
pub mod writer;

pgrx::pg_module_magic!(name, version);

/// Called by PostgreSQL when the library is loaded.
#[pgrx::pg_guard]
#[allow(non_snake_case)]
pub extern "C-unwind" fn _PG_init() {
    settings::define();
    distribution::listen();
    launcher::register();
}
