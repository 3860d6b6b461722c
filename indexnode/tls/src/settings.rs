//! The section `[tls]` of a configuration file.

use std::{io, net::ToSocketAddrs, path::PathBuf};

use serde::Deserialize;

/// Certificates for the connections between Mantle's processes.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TlsSettings {
    /// Certificates of the authorities that this process trusts, in PEM: two while a new one replaces the old one.
    pub ca_file: PathBuf,
    /// The certificate of this process in PEM, then those between it and the authority. Its subject names the role as
    /// organizational unit: `mantle-peer`, `mantle-gateway` or `mantle-administrator`.
    pub certificate_file: PathBuf,
    /// Its private key in PEM. Users other than the owner and the group may not read it.
    pub key_file: PathBuf,
    /// How far the change from plain connections to TLS has come; `strict` if it is not given.
    #[serde(default)]
    pub phase: Phase,
}

/// The phases in which a running cluster changes to TLS: every process is in one phase before any enters the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Accepts plain connections and TLS. Connects without TLS.
    Accept,
    /// Accepts plain connections and TLS. Connects with TLS.
    Connect,
    /// Accepts TLS only. Connects with TLS.
    #[default]
    Strict,
}

/// The host of `host:port`, an address of IPv6 without its brackets.
pub fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Tells whether every address of `host:port` is a loopback address.
///
/// # Errors
/// The text is not an address, or its name is not known.
pub fn is_loopback(address: &str) -> io::Result<bool> {
    Ok(address.to_socket_addrs()?.all(|address| address.ip().is_loopback()))
}
