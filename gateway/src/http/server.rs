//! Accepts connections, within bounds: of their number, of the time in which a request's head must arrive, and of the time
//! without a byte of its body. Otherwise a client that says nothing holds a connection for ever, and some thousands of
//! them hold the service.

use std::{
    convert::Infallible,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderValue, Request, Response, Version, header},
};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mantle_tls::{Https, Live, Stream};
use metrics::{counter, gauge};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::config::Limits;

/// The pause after a connection that could not be accepted, because there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Most requests of one HTTP/2 connection at a time.
const STREAMS_MAX: u32 = 256;
/// Largest head of an HTTP/2 request, in bytes; S3 allows 8 KiB of headers.
const HEAD_BYTES_MAX: u32 = 32 << 10;
/// HTTP/2 flow-control windows; the default of 64 KiB costs a round trip for every part of a body.
const WINDOW_BYTES: u32 = 1 << 20;
/// A connection of HTTP/2 whose other end does not answer for twice this time is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// How clients may connect.
pub enum Accepts {
    /// HTTP without TLS.
    Plain,
    /// HTTPS only.
    Https(Live<Https>),
    /// Both, by the first byte that a client sends.
    Both(Live<Https>),
}

/// Counter of connections, and gauge of those that are open.
const ACCEPTED: &str = "mantle_gateway_connections_total";
const OPEN: &str = "mantle_gateway_open_connections";

/// What all connections share.
struct Server<Answer> {
    answer: Answer,
    accepts: Accepts,
    head_timeout: Duration,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    stopped: CancellationToken,
}

/// Serves until `stopped`, and then until the requests under way are answered.
pub async fn serve<Answer, Answered>(
    listener: TcpListener,
    answer: Answer,
    accepts: Accepts,
    limits: &Limits,
    stopped: CancellationToken,
) where
    Answer: Fn(Request<Body>) -> Answered + Clone + Send + Sync + 'static,
    Answered: Future<Output = Response<Body>> + Send + 'static,
{
    let head_timeout = Duration::from_millis(limits.head_timeout_ms);
    let mut http1 = http1::Builder::new();
    // Also bounds the time that a connection stays open between two requests.
    http1.timer(TokioTimer::new()).header_read_timeout(head_timeout);
    let mut http2 = http2::Builder::new(TokioExecutor::new());
    http2
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    let server = Arc::new(Server { answer, accepts, head_timeout, http1, http2, stopped: stopped.clone() });
    let (free, connections) = (Arc::new(Semaphore::new(limits.connections_max)), TaskTracker::new());
    let accept = async {
        loop {
            // Clients over the bound wait in the listener's queue.
            let Ok(place) = free.clone().acquire_owned().await else { return };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(cause) => {
                    tracing::warn!(%cause, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // An answer is written in one piece. Waiting to fill a packet would take longer than the request.
            let _ = stream.set_nodelay(true);
            let server = server.clone();
            connections.spawn(async move {
                if let Err(cause) = server.connection(stream).await {
                    tracing::debug!(cause, "a connection broke");
                }
                drop(place);
            });
        }
    };
    tokio::select! {
        () = accept => {}
        () = stopped.cancelled() => {}
    }
    connections.close();
    connections.wait().await;
}

/// A connection on which requests may come.
enum Opened {
    Plain(TcpStream),
    /// And whether it speaks HTTP/2.
    Tls(Stream, bool),
}

/// One of the connections that are open, in the metrics.
struct Counted(&'static str);

impl Counted {
    fn begin(kind: &'static str) -> Self {
        counter!(ACCEPTED, "kind" => kind).increment(1);
        gauge!(OPEN, "kind" => kind).increment(1);
        Self(kind)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        gauge!(OPEN, "kind" => self.0).decrement(1);
    }
}

type Broken = Box<dyn std::error::Error + Send + Sync>;

impl<Answer, Answered> Server<Answer>
where
    Answer: Fn(Request<Body>) -> Answered + Clone,
    Answered: Future<Output = Response<Body>> + Send + 'static,
{
    async fn connection(&self, stream: TcpStream) -> Result<(), Broken> {
        let opened = tokio::select! {
            opened = timeout(self.head_timeout, self.open(stream)) => opened,
            () = self.stopped.cancelled() => return Ok(()),
        };
        match opened.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
            Opened::Plain(stream) => {
                let _counted = Counted::begin("plain");
                self.http1(stream).await
            }
            Opened::Tls(stream, is_http2) => {
                let _counted = Counted::begin("tls");
                if is_http2 { self.http2(stream).await } else { self.http1(stream).await }
            }
        }
    }

    async fn open(&self, stream: TcpStream) -> io::Result<Opened> {
        let https = match &self.accepts {
            Accepts::Plain => return Ok(Opened::Plain(stream)),
            Accepts::Both(_) if !mantle_tls::begins_tls(&stream).await? => return Ok(Opened::Plain(stream)),
            Accepts::Https(https) | Accepts::Both(https) => https,
        };
        let (stream, is_http2) = mantle_tls::accept_https(stream, https).await?;
        Ok(Opened::Tls(stream, is_http2))
    }

    async fn http1<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(&self, stream: S) -> Result<(), Broken> {
        let answer = self.answer.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let answered = answer(request.map(Body::new));
            async move { Ok::<_, Infallible>(answered.await) }
        });
        let mut connection = pin!(self.http1.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            ended = connection.as_mut() => return Ok(ended?),
            () = self.stopped.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        Ok(connection.await?)
    }

    /// HTTP/2 has no bound of its own on a connection without requests.
    async fn http2(&self, stream: Stream) -> Result<(), Broken> {
        let (answer, requests) = (self.answer.clone(), Arc::new(Requests::default()));
        let counted = requests.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (answered, counted) = (answer(with_host(request.map(Body::new))), counted.begin());
            async move {
                let response = answered.await;
                drop(counted);
                Ok::<_, Infallible>(response)
            }
        });
        let mut connection = pin!(self.http2.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            ended = connection.as_mut() => return Ok(ended?),
            () = requests.none_for(self.head_timeout) => connection.as_mut().graceful_shutdown(),
            () = self.stopped.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        Ok(connection.await?)
    }
}

/// The signature covers the header `Host`, which HTTP/2 sends as the request's authority.
fn with_host(mut request: Request<Body>) -> Request<Body> {
    let authority = request.uri().authority().map(|authority| HeaderValue::try_from(authority.as_str()));
    if let Some(Ok(host)) = authority
        && request.version() == Version::HTTP_2
        && !request.headers().contains_key(header::HOST)
    {
        request.headers_mut().insert(header::HOST, host);
    }
    request
}

/// The requests under way on a connection.
#[derive(Default)]
struct Requests {
    under_way: AtomicUsize,
    changed: Notify,
}

struct Begun(Arc<Requests>);

impl Requests {
    fn begin(self: &Arc<Self>) -> Begun {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_one();
        Begun(self.clone())
    }

    /// Returns when there was no request for this long.
    async fn none_for(&self, limit: Duration) {
        loop {
            if self.under_way.load(Ordering::Acquire) > 0 {
                self.changed.notified().await;
            } else if timeout(limit, self.changed.notified()).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests;
