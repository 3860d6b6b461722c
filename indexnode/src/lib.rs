//! IndexNode: the directory index of a namespace in memory, replicated by Raft, rebuilt from PostgreSQL.
//!
//! `index` is the pure core; `lookup` caches prefixes over it; `raft` makes a replicated log of its commands; `source` feeds it from PostgreSQL while this
//! replica leads; `server` answers gateways, peers and probes; `membership` decides how a replica finds its place in the
//! group; `node` is one incarnation of it, `replica` runs them one after the other; `groups` are the groups that a process has replicas of; `detached` a group without a source, for measurements.

pub mod config;
pub mod detached;
pub mod failpoints;
pub mod groups;
pub mod index;
pub mod lookup;
pub mod membership;
pub mod node;
mod prefetch;
pub mod raft;
pub mod replica;
pub mod requests;
pub mod server;
pub mod source;

/// The generated types of the service between replicas.
pub mod proto {
    /// `proto/peer.proto`.
    #[allow(missing_docs, clippy::all)]
    pub mod peer {
        tonic::include_proto!("mantle.peer.v1");
    }
}
