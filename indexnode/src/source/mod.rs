//! The leader's work with PostgreSQL: follows the change streams, rebuilds the index, moves namespaces between groups.
//!
//! Invariant: only the leader reads the slots, and only after it has applied the first entry of its own term (P4). A slot
//! is confirmed up to a position only when the group has applied it (`confirmed ≤ applied ≤ received`). Sources:
//! PostgreSQL's logical replication protocol; materialize's `replication.rs` for the states.

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
