//! Mantle's gateway serves S3 and a native REST API over the metadata database and its index. It keeps no state of its
//! own: any number of gateways may serve the same namespaces.
//!
//! A layer imports only itself and the layers below it:
//! - `http`: S3, REST, probes; decides nothing
//! - `ops`: the use cases, one verb per file
//! - `app`: the parts that every use case works with, and the caller
//! - `ids`: new ids, from blocks that PostgreSQL records
//! - `key_sizes`: how large the keys of a namespace may be
//! - `index`: the index client
//! - `listing`: S3's listing rules, pure logic
//! - `store`: the metadata database
//! - `data`: the objects' bytes
//! - `auth`: the credentials file
//! - `config`: the configuration file
//! - `disconnect`: client disconnects
//! - `waiting`: how long a request is waited for
//! - `hash`: the hash of a request
//! - `migration`: how far a migration of bytes is
//! - `metric_table`: names and meanings of the metrics
//! - `secret_file`: files of secrets

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
mod key_sizes;
mod listing;
mod metric_table;
mod migration;
mod ops;
mod secret_file;
mod store;
mod waiting;

#[cfg(fuzzing)]
pub use crate::http::parsers;
pub use crate::{auth::Credentials, http::serve};
