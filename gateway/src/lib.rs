//! Mantle's gateway: S3 and a native REST API over the metadata database and its index. It keeps no state of its own; any
//! number of gateways may serve the same namespaces.
//!
//! Dependencies point one way: `http` → `ops` (use cases, one verb a file) → `index` and `store` (the index client and the
//! SQL). `data` holds the objects' bytes; `listing` is pure logic.

mod app;
mod auth;
/// The configuration file.
pub mod config;
mod data;
mod disconnect;
mod hash;
mod http;
mod ids;
mod index;
mod listing;
mod ops;
mod store;

pub use crate::{auth::Credentials, http::serve};
