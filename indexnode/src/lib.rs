//! IndexNode: the directory index of a Mantle namespace, in memory, replicated by Raft, rebuilt from PostgreSQL.

pub mod index;
