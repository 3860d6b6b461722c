//! IndexNode: the directory index of a namespace in memory, replicated by Raft, rebuilt from PostgreSQL.
//!
//! Imports point downwards in this list of layers:
//!
//! - `standalone`: a replica without PostgreSQL, for measurements
//! - `process`: process start, and the life of a replica
//! - `server`: the services for gateways, other replicas, probes and metrics
//! - `source`: the leader's work: follows the change streams, rebuilds the index, moves namespaces
//! - `health`: checks whether a replica answers, and when one with a fault joins anew
//! - `membership`: how a replica joins or founds a cluster, and what an administrator changes
//! - `groups`: the replicas of this process, by group
//! - `replica`: one of them, through all its incarnations
//! - `readiness`: whether it answers, and why not
//! - `waits`: waits until a change is applied
//! - `node`: one incarnation of a replica: a Raft node over a data directory
//! - `settled`: an entry after which the index has all that PostgreSQL shows
//! - `postgres`: connections and statements
//! - `progress`: how far the change streams and a rebuild are
//! - `raft`: durable log, state machine, snapshots, network between replicas, read index
//! - `requests`: which requests are applied
//! - `config`: the configuration file
//! - `lookup`: the cache of resolved prefixes over the index
//! - `index`: the pure core: the directory index and the commands that change it
//! - `failpoints`: protections that tests leave out
//! - `prefetch`: memory prefetch

pub mod config;
pub mod failpoints;
pub mod groups;
mod health;
pub mod index;
pub mod lookup;
mod membership;
pub mod node;
pub mod postgres;
mod prefetch;
pub mod process;
pub mod progress;
pub mod raft;
mod readiness;
pub mod replica;
mod requests;
pub mod server;
mod settled;
mod source;
pub mod standalone;
mod waits;

/// The generated types of the service between replicas.
pub mod proto {
    /// `proto/peer.proto`.
    #[allow(missing_docs, clippy::all)]
    pub mod peer {
        tonic::include_proto!("mantle.peer.v1");
    }
}
