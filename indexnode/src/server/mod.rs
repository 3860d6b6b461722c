//! The services of the process: for gateways, other replicas, probes and Prometheus.

mod access;
mod awaits;
mod calls;
mod connection;
mod directories;
pub(crate) mod grpc;
pub(crate) mod http;
pub mod index_service;
mod metric_table;
pub(crate) mod metrics;
pub mod peer_service;
mod rename;
mod request;
mod resolve;
mod status;
