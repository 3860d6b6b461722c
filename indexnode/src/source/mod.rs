//! Feeding the index from PostgreSQL, while this replica leads its group.
//!
//! Invariant: only the leader reads the slot, and only after it has applied its own term's first entry (P4); what
//! the slot is told to forget is applied, so committed by the group (`confirmed ≤ applied ≤ received`). Source: PostgreSQL's
//! logical replication protocol; materialize's `replication.rs` for the states.

pub mod assign;
pub mod backlog;
pub mod continuity;
pub mod copy;
pub mod database;
pub mod feed;
pub mod gate;
pub mod lead;
pub mod locks;
pub mod moves;
pub mod progress;
pub mod reader;
pub mod rebuild;
pub mod split;
pub mod sql;
pub mod stream;
pub mod upstream;
pub mod verify;
