//! Connects to Mantle's processes.

use std::io;

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};

use crate::{
    live::Tls,
    settings::{Phase, host_of},
    stream::{End, Stream, Verified},
};

/// Connects to the IndexNode at `host:port`: with TLS, if there are certificates and the phase says so. The server's
/// certificate must be for that host and name a peer.
///
/// # Errors
/// Nobody listens, or the server's certificate is not good, or it does not like this process's one.
pub async fn connect(address: &str, tls: Option<&Tls>) -> io::Result<Stream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = tls.filter(|tls| tls.phase() != Phase::Accept) else { return Ok(Stream::connected(stream)) };
    let name = ServerName::try_from(host_of(address).to_owned()).map_err(io::Error::other)?;
    let (generation, by) = tls.generation_and_current();
    let connected = TlsConnector::from(by.client.clone()).connect(name.clone(), stream).await;
    let connected = connected.inspect_err(|e| tracing::debug!(address, error = %e, "no TLS connection"))?;
    let verified = Verified::new(TlsStream::from(connected), End::Server(name), tls.clone(), generation);
    Ok(Stream::connected_by_tls(verified))
}
