//! Accepts connections from Mantle's processes.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use mantle_telemetry::pace::Pace;
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
    settings::Phase,
    stream::{Connection, End, Security, Stream, Verified},
};

/// A client that takes longer to begin, or to shake hands, is left.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Most handshakes at a time; further clients wait in the listener's queue.
const HANDSHAKES_MAX: usize = 1024;
/// What clients without a certificate get where one is needed: enough to be told so, but not the service's open files.
const STRANGERS: Strangers = Strangers { most: 64, time: Duration::from_secs(10) };
/// The pause after a connection that could not be accepted, because there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The pause between two lines of the log.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// The first byte of a TLS handshake. HTTP without TLS begins with a letter.
const TLS_HANDSHAKE: u8 = 0x16;

/// A connection that was accepted, and what is known of its other end.
pub type Accepted = (Stream, Connection);

/// The bounds of connections whose other end has no role: how many are open at a time, and each for how long.
#[derive(Clone, Copy)]
pub(crate) struct Strangers {
    pub(crate) most: usize,
    pub(crate) time: Duration,
}

/// Accepts connections, with TLS or without; the service decides what a connection may do. Without `tls` every connection is
/// taken as it is. Must be called within a tokio runtime; ends when the receiver is dropped.
pub fn incoming(listener: TcpListener, tls: Option<Tls>) -> mpsc::Receiver<Accepted> {
    incoming_within(listener, tls, STRANGERS)
}

pub(crate) fn incoming_within(
    listener: TcpListener,
    tls: Option<Tls>,
    strangers: Strangers,
) -> mpsc::Receiver<Accepted> {
    let (accepted, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let free = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        let places = Arc::new(Semaphore::new(strangers.most));
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
            let (accepted, tls, places) = (accepted.clone(), tls.clone(), places.clone());
            tokio::spawn(async move {
                // An answer is written in one piece. Waiting to fill a packet would take longer than the call.
                let _ = stream.set_nodelay(true);
                let phase = tls.as_ref().map(Tls::phase);
                match timeout(HANDSHAKE, open(stream, address, tls)).await {
                    Ok(Ok(opened)) => match bounded(opened, phase, strangers.time, places) {
                        Some(opened) => {
                            let _ = accepted.send(opened).await;
                        }
                        None => refused(address, &"too many clients without a role"),
                    },
                    Ok(Err(cause)) => refused(address, &cause),
                    Err(_) => tracing::debug!(%address, "a client said nothing, or not enough"),
                }
                drop(place);
            });
        }
    });
    receiver
}

/// The connection, which ends after this time if its other end has no role; `None`: too many of these are open.
fn bounded(opened: Accepted, phase: Option<Phase>, time: Duration, places: Arc<Semaphore>) -> Option<Accepted> {
    let (stream, connection) = opened;
    if !is_stranger(&connection, phase) {
        return Some((stream, connection));
    }
    let place = places.try_acquire_owned().ok()?;
    Some((stream.until(sleep(time), place), connection))
}

/// Whether the service would refuse every call of this connection.
fn is_stranger(connection: &Connection, phase: Option<Phase>) -> bool {
    match (&connection.security, phase) {
        (_, None) => false,
        (Security::Plain, Some(phase)) => phase == Phase::Strict,
        (Security::Tls(identity), Some(_)) => !identity.as_ref().is_some_and(|identity| identity.has_role()),
    }
}

/// Counts a connection that was not made. One a second is logged: whoever reaches the port could fill the disk with log.
fn refused(address: SocketAddr, cause: &dyn fmt::Display) {
    static LOGGED: Pace = Pace::new(LOG_INTERVAL);
    counter!("mantle_tls_connections_total", "kind" => "failed").increment(1);
    if LOGGED.is_due() {
        tracing::info!(%address, %cause, "a connection was not made; more within a second are only counted");
    }
}

/// Waits for a client's first byte, and tells whether it begins a TLS handshake. The byte stays unread.
///
/// # Errors
/// The connection broke.
pub async fn begins_tls(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    Ok(first[0] == TLS_HANDSHAKE)
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
    if !begins_tls(&stream).await? {
        return plain(stream);
    }
    let (generation, by) = tls.generation_and_current();
    let stream = TlsAcceptor::from(by.server.clone()).accept(stream).await?;
    let verified = Verified::new(TlsStream::from(stream), End::Client, tls, generation);
    let identity = verified.certificate().map(Identity::of).transpose().map_err(io::Error::other)?.map(Arc::new);
    Ok((Stream::accepted_by_tls(verified), Connection { address, security: Security::Tls(identity) }))
}
