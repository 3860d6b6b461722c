//! The services of the process: for gateways, other replicas, probes and Prometheus.

mod directories;
pub mod grpc;
pub mod http;
pub mod index_service;
mod metric_table;
pub mod metrics;
pub mod peer_service;
pub mod rename;
mod request;
pub mod resolve;
mod status;
