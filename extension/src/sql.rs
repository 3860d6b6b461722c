//! The SQL objects of `sql/`, as `build.rs` renders them: one block, after everything that Rust declares.

include!(concat!(env!("OUT_DIR"), "/sql.rs"));
