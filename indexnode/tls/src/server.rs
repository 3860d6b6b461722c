//! Accepts connections from Mantle's processes.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use metrics::counter;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::{
    credentials::{HTTP2, Https},
    identity::Identity,
    live::{Live, Tls},
    stream::{Connection, End, Security, Stream, Verified},
};

/// A client that takes longer to begin, or to shake hands, is left.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Most handshakes at a time; further clients wait in the listener's queue.
const HANDSHAKES_MAX: usize = 1024;
/// The pause after a connection that could not be accepted, because there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The first byte of a TLS handshake. HTTP/2 without TLS begins with a letter.
const TLS_HANDSHAKE: u8 = 0x16;

/// A connection that was accepted, and what is known of its other end.
pub type Accepted = (Stream, Connection);

/// Accepts connections, with TLS or without; the service decides what a connection may do. Without `tls` every connection is
/// taken as it is. Must be called within a tokio runtime; ends when the receiver is dropped.
pub fn incoming(listener: TcpListener, tls: Option<Tls>) -> mpsc::Receiver<Accepted> {
    let (accepted, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let free = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        while let Ok(place) = free.clone().acquire_owned().await {
            let accept = tokio::select! {
                accept = listener.accept() => accept,
                () = accepted.closed() => return,
            };
            let (stream, address) = match accept {
                Ok(found) => found,
                Err(cause) => {
                    tracing::warn!(%cause, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (accepted, tls) = (accepted.clone(), tls.clone());
            tokio::spawn(async move {
                // An answer is written in one piece. Waiting to fill a packet would take longer than the call.
                let _ = stream.set_nodelay(true);
                match timeout(HANDSHAKE, open(stream, address, tls)).await {
                    Ok(Ok(opened)) => {
                        let _ = accepted.send(opened).await;
                    }
                    Ok(Err(cause)) => {
                        counter!("mantle_tls_connections_total", "kind" => "failed").increment(1);
                        tracing::info!(%address, %cause, "a TLS connection was not made");
                    }
                    Err(_) => tracing::debug!(%address, "a client said nothing, or not enough"),
                }
                drop(place);
            });
        }
    });
    receiver
}

/// Shakes hands with a user's client. Tells whether it speaks HTTP/2.
///
/// # Errors
/// The client speaks no TLS, or none that the server speaks.
pub async fn accept_https(stream: TcpStream, https: &Live<Https>) -> io::Result<(Stream, bool)> {
    let stream = TlsAcceptor::from((*https.current()).clone()).accept(stream).await?;
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
    let stream = TlsStream::from(stream);
    Ok((if is_http2 { Stream::of_requests_at_once(stream) } else { Stream::of_one_request(stream) }, is_http2))
}

async fn open(stream: TcpStream, address: SocketAddr, tls: Option<Tls>) -> io::Result<Accepted> {
    let plain = |stream| Ok((Stream::accepted(stream), Connection { address, security: Security::Plain }));
    let Some(tls) = tls else { return plain(stream) };
    let mut first = [0];
    stream.peek(&mut first).await?;
    if first[0] != TLS_HANDSHAKE {
        return plain(stream);
    }
    let (generation, by) = tls.generation_and_current();
    let stream = TlsAcceptor::from(by.server.clone()).accept(stream).await?;
    let verified = Verified::new(TlsStream::from(stream), End::Client, tls, generation);
    let identity = verified.certificate().map(Identity::of).transpose().map_err(io::Error::other)?.map(Arc::new);
    Ok((Stream::accepted_by_tls(verified), Connection { address, security: Security::Tls(identity) }))
}
