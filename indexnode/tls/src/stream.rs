//! A connection, encrypted or not, and what is known of its other end.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use metrics::{counter, gauge};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::OwnedSemaphorePermit,
    time::Sleep,
};
use tokio_rustls::TlsStream;

use crate::{gathering::Gathering, identity::Identity, live::Tls};

/// How a connection is secured.
#[derive(Clone, Debug)]
pub enum Security {
    /// Not at all.
    Plain,
    /// By TLS; `None`: the client showed no certificate.
    Tls(Option<Arc<Identity>>),
}

/// What is known of a connection's other end.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Its address.
    pub address: SocketAddr,
    /// How it is secured.
    pub security: Security,
}

/// A connection, with TLS or without.
pub struct Stream {
    inner: Inner,
    /// None where there is one request at a time, so nothing to gather.
    gathering: Option<Gathering>,
    /// Ends with the connection.
    _counted: Option<Counted>,
    /// Set if the connection ends at some time, whatever happens on it.
    bound: Option<Bound>,
}

struct Bound {
    end: Pin<Box<Sleep>>,
    /// Free again when the connection has ended.
    _place: OwnedSemaphorePermit,
}

enum Inner {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Verified(Box<Verified>),
}

/// One of the connections that are open, in the metrics.
struct Counted(&'static str);

impl Counted {
    fn begin(kind: &'static str) -> Self {
        counter!("mantle_tls_connections_total", "kind" => kind).increment(1);
        gauge!("mantle_tls_open_connections", "kind" => kind).increment(1);
        Self(kind)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        gauge!("mantle_tls_open_connections", "kind" => self.0).decrement(1);
    }
}

/// Whom the certificates of a connection's other end are for.
pub(crate) enum End {
    /// Whoever connected.
    Client,
    /// The server of this name, which this process connected to.
    Server(ServerName<'static>),
}

/// A connection whose other end must still be trusted when the authorities change. It may outlive its certificate.
pub(crate) struct Verified {
    stream: TlsStream<TcpStream>,
    end: End,
    /// The other end's certificate, then those between it and the authority. Empty: a client that showed none.
    chain: Vec<CertificateDer<'static>>,
    tls: Tls,
    /// The state of `tls` that the chain was verified by.
    generation: u64,
}

impl Verified {
    pub(crate) fn new(stream: TlsStream<TcpStream>, end: End, tls: Tls, generation: u64) -> Self {
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let chain: Vec<_> = shown.iter().map(|certificate| certificate.clone().into_owned()).collect();
        Self { stream, end, chain, tls, generation }
    }

    /// The other end's certificate.
    pub(crate) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.chain.first()
    }

    /// An authority that is removed is not trusted any more, also on connections that are open.
    fn check(&mut self) -> io::Result<()> {
        if self.tls.generation() == self.generation {
            return Ok(());
        }
        let now = UnixTime::now();
        let (generation, by) = self.tls.generation_and_current();
        if let Some((own, others)) = self.chain.split_first() {
            let verified = match &self.end {
                End::Client => by.clients.verify_client_cert(own, others, now).map(drop),
                End::Server(name) => by.servers.verify_server_cert(own, others, name, &[], now).map(drop),
            };
            verified.map_err(|e| io::Error::new(io::ErrorKind::PermissionDenied, e))?;
        }
        self.generation = generation;
        Ok(())
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        stream.check_time(cx)?;
        match &mut stream.inner {
            Inner::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Inner::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Inner::Verified(verified) => match verified.check() {
                Ok(()) => Pin::new(&mut verified.stream).poll_read(cx, buf),
                Err(e) => Poll::Ready(Err(e)),
            },
        }
    }
}

impl Stream {
    pub(crate) fn connected(stream: TcpStream) -> Self {
        Self::of_many_requests(Inner::Plain(stream), None)
    }

    pub(crate) fn connected_by_tls(verified: Verified) -> Self {
        Self::of_many_requests(Inner::Verified(Box::new(verified)), None)
    }

    /// A user's connection of HTTP/2.
    pub(crate) fn of_requests_at_once(stream: TlsStream<TcpStream>) -> Self {
        Self::of_many_requests(Inner::Tls(Box::new(stream)), None)
    }

    /// A user's connection of HTTP/1.1.
    pub(crate) fn of_one_request(stream: TlsStream<TcpStream>) -> Self {
        Self { inner: Inner::Tls(Box::new(stream)), gathering: None, _counted: None, bound: None }
    }

    pub(crate) fn accepted(stream: TcpStream) -> Self {
        Self::of_many_requests(Inner::Plain(stream), Some(Counted::begin("plain")))
    }

    pub(crate) fn accepted_by_tls(verified: Verified) -> Self {
        let kind = if verified.chain.is_empty() { "without_certificate" } else { "tls" };
        Self::of_many_requests(Inner::Verified(Box::new(verified)), Some(Counted::begin(kind)))
    }

    fn of_many_requests(inner: Inner, counted: Option<Counted>) -> Self {
        Self { inner, gathering: Some(Gathering::default()), _counted: counted, bound: None }
    }

    /// The same connection, which ends when `end` is over, or before. It takes up a place until then.
    pub(crate) fn until(self, end: Sleep, place: OwnedSemaphorePermit) -> Self {
        Self { bound: Some(Bound { end: Box::pin(end), _place: place }), ..self }
    }

    /// An error once the connection has to end. The task is woken then.
    fn check_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.bound.as_mut().map(|bound| bound.end.as_mut().poll(cx)) {
            Some(Poll::Ready(())) => Err(io::ErrorKind::TimedOut.into()),
            Some(Poll::Pending) | None => Ok(()),
        }
    }

    /// Lets the tasks that are ready run before these bytes leave, where that gathers more of them.
    fn poll_gathered(&mut self, cx: &Context<'_>, bytes: usize) -> Poll<()> {
        if self.gathering.as_mut().is_some_and(|gathering| gathering.waits(bytes)) {
            // A task that wakes itself while it runs goes behind all that are ready.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    fn writer(&mut self) -> Pin<&mut dyn Write> {
        match &mut self.inner {
            Inner::Plain(stream) => Pin::new(stream),
            Inner::Tls(stream) => Pin::new(stream),
            Inner::Verified(verified) => Pin::new(&mut verified.stream),
        }
    }
}

trait Write: AsyncWrite + Unpin {}
impl<T: AsyncWrite + Unpin> Write for T {}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        stream.check_time(cx)?;
        ready!(stream.poll_gathered(cx, buf.len()));
        stream.writer().poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        stream.check_time(cx)?;
        ready!(stream.writer().poll_flush(cx))?;
        if let Some(gathering) = &mut stream.gathering {
            gathering.flushed();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        stream.check_time(cx)?;
        stream.writer().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        stream.check_time(cx)?;
        ready!(stream.poll_gathered(cx, bufs.iter().map(|buf| buf.len()).sum()));
        stream.writer().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.inner {
            Inner::Plain(stream) => stream.is_write_vectored(),
            Inner::Tls(stream) => stream.is_write_vectored(),
            Inner::Verified(verified) => verified.stream.is_write_vectored(),
        }
    }
}
