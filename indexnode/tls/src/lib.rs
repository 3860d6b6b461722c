//! TLS between Mantle's processes: the files, who a certificate is for, listeners, and connections.
//!
//! Every connection between IndexNodes, gateways and administrators' tools has a certificate at both ends. A
//! certificate names a *role* (peer, gateway, administrator), and each service accepts only calls of certain roles. The
//! files are read again when they change, so a certificate or an authority is replaced without a restart.
//!
//! A layer imports only itself and the layers below it:
//!
//! - `testing`: certificates for tests
//! - `server`: accepting connections, of Mantle's processes and of users
//! - `client`: connecting to IndexNodes
//! - `postgres`: connecting to PostgreSQL
//! - `stream`: a connection, encrypted or not
//! - `gathering`: when a write waits for others
//! - `live`: the newest state of the files
//! - `credentials`: the files, as configurations of rustls
//! - `identity`: the role and the hosts of a certificate
//! - `settings`: the section `[tls]` of a configuration file
//! - `metric_table`: names and meanings of the metrics
//! - `secret_file`: files that only their owner may read
//! - `process`: files that other users of the machine may not read, and enough of them

mod client;
mod credentials;
mod gathering;
mod identity;
mod live;
/// The metrics of certificates and connections.
pub mod metric_table;
mod postgres;
/// The process, before it opens files and ports.
pub mod process;
/// Files that only their owner may read.
pub mod secret_file;
mod server;
mod settings;
mod stream;
/// Certificates for tests.
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use client::connect;
pub use credentials::{Https, MinimumVersion};
pub use identity::{Identity, Role};
pub use live::{Live, Tls};
pub use postgres::{PostgresConnector, PostgresTls, check_database};
pub use server::{Accepted, accept_https, begins_tls, incoming};
pub use settings::{Phase, TlsSettings, host_of, is_loopback};
pub use stream::{Connection, Security, Stream};

#[cfg(test)]
mod tests;
