//! The HTTP clients of the bench.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use reqwest::{Certificate, Client, ClientBuilder};

/// How long a client keeps a connection that it does not use. Mantle closes it after 30 s, and a request that is sent in that
/// moment fails.
const IDLE: Duration = Duration::from_secs(15);

/// A client that keeps its connections. It reads no certificates: many clients are made, and their services are plain.
pub fn client() -> Client {
    builder().tls_certs_only([]).build().expect("a client without files of its own can be made")
}

/// A client of HTTP/1.1 that trusts the authority of the file.
pub fn client_trusting(authority: &Path) -> Result<Client> {
    let pem = fs::read(authority).with_context(|| format!("cannot read {}", authority.display()))?;
    Ok(builder().http1_only().tls_certs_only([Certificate::from_pem(&pem)?]).build()?)
}

/// Each client asks for a provider of cryptography, also one that never speaks TLS, and none is built into reqwest here.
fn builder() -> ClientBuilder {
    // An error says that an earlier client has named it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().pool_idle_timeout(IDLE)
}
