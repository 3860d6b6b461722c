//! What this process answers: gateways, the other replicas, probes.

mod directories;
pub mod http;
pub mod index_service;
pub mod metrics;
pub mod peer_service;
pub mod read_gate;
pub mod rename;
pub mod resolve;
pub mod wait;
