//! A connection, encrypted or not, and what is known of its other end.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use metrics::{counter, gauge};
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::TlsStream;

use crate::{identity::Identity, live::Tls};

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
    /// Ends with the connection.
    _counted: Option<Counted>,
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

/// A client's connection, with certificates that must still be trusted when the authorities change.
pub(crate) struct Verified {
    stream: TlsStream<TcpStream>,
    chain: Vec<CertificateDer<'static>>,
    tls: Tls,
    generation: u64,
}

impl Verified {
    pub(crate) fn new(
        stream: TlsStream<TcpStream>,
        chain: Vec<CertificateDer<'static>>,
        tls: Tls,
        generation: u64,
    ) -> Self {
        Self { stream, chain, tls, generation }
    }

    /// An authority that is removed is not trusted any more, also on connections that it had opened.
    fn check(&mut self) -> io::Result<()> {
        if self.tls.generation() == self.generation {
            return Ok(());
        }
        let (generation, now) = self.tls.generation_and_current();
        if let Some((own, others)) = self.chain.split_first() {
            let verified = now.verifier.verify_client_cert(own, others, UnixTime::now());
            verified.map_err(|e| io::Error::new(io::ErrorKind::PermissionDenied, e))?;
        }
        self.generation = generation;
        Ok(())
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().inner {
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
        Self { inner: Inner::Plain(stream), _counted: None }
    }

    pub(crate) fn connected_by_tls(stream: TlsStream<TcpStream>) -> Self {
        Self { inner: Inner::Tls(Box::new(stream)), _counted: None }
    }

    pub(crate) fn accepted(stream: TcpStream) -> Self {
        Self { inner: Inner::Plain(stream), _counted: Some(Counted::begin("plain")) }
    }

    pub(crate) fn accepted_by_tls(verified: Verified) -> Self {
        let kind = if verified.chain.is_empty() { "without_certificate" } else { "tls" };
        Self { inner: Inner::Verified(Box::new(verified)), _counted: Some(Counted::begin(kind)) }
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
        self.get_mut().writer().poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().writer().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().writer().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().writer().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.inner {
            Inner::Plain(stream) => stream.is_write_vectored(),
            Inner::Tls(stream) => stream.is_write_vectored(),
            Inner::Verified(verified) => verified.stream.is_write_vectored(),
        }
    }
}
