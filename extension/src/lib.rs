//! TafDB: Mantle's MetaTable as a PostgreSQL extension.
//!
//! `build.rs` renders the SQL objects, which have their homes under `sql/`. Rust has what SQL cannot do, or not as fast.
//! Its modules in order of layers; each imports only from those below it:
//!
//! - `sql`: the SQL objects, as `build.rs` renders them;
//! - `worker`: background processes;
//! - `verbs`: fast paths of `mkdir`, `put_object`, `rename_directory` and `rmdir`;
//! - `reads`: fast paths of `stat` and `list`;
//! - `tree`: walks of directory trees, and the plan of an import;
//! - `steps`: latches, leases, segments of volumes, counts, names, removals, answers to requests, the change-stream message;
//! - `citus`: which node has a partition, and what Citus must know of writes without it;
//! - `row_security`: which namespaces a role may read;
//! - `certificates`: when the server's certificates expire;
//! - `settings`: the GUCs;
//! - `fault`: how an error code leaves Rust;
//! - `postgres`: PostgreSQL's C API.

mod certificates;
mod citus;
mod fault;
mod postgres;
mod reads;
mod row_security;
mod settings;
mod sql;
mod steps;
mod tree;
mod verbs;
mod worker;

pgrx::pg_module_magic!(name, version);

/// Called by PostgreSQL when the library is loaded.
#[pgrx::pg_guard]
#[allow(non_snake_case)]
pub extern "C-unwind" fn _PG_init() {
    settings::define();
    citus::shards::register_invalidation();
    worker::launcher::register();
}
