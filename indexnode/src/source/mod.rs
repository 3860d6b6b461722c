//! Feeding the index from PostgreSQL, while this replica leads its group.
//!
//! Invariant: only the leader reads the slot, and only after it has applied its own term's first entry (P4); what
//! the slot is told to forget is applied, so committed by the group (`confirmed ≤ applied ≤ received`). Source: PostgreSQL's
//! logical replication protocol; materialize's `replication.rs` for the states.

pub mod assignments;
pub mod backlog;
pub mod connections;
pub mod continuity;
pub mod leader;
pub mod moves;
pub mod reader;
pub mod rebuild;
pub mod rename_locks;
pub mod split;
pub mod standby_gate;
pub mod stream;
pub mod verify;
