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

/// What all connections share.
struct Server<Answer> {
    answer: Answer,
    https: Option<Live<Https>>,
    head_timeout: Duration,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    stopped: CancellationToken,
}

/// Serves until `stopped`, and then until the requests under way are answered. With certificates it speaks TLS only.
pub async fn serve<Answer, Answered>(
    listener: TcpListener,
    answer: Answer,
    https: Option<Live<Https>>,
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
    let server = Arc::new(Server { answer, https, head_timeout, http1, http2, stopped: stopped.clone() });
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

type Broken = Box<dyn std::error::Error + Send + Sync>;

impl<Answer, Answered> Server<Answer>
where
    Answer: Fn(Request<Body>) -> Answered + Clone,
    Answered: Future<Output = Response<Body>> + Send + 'static,
{
    async fn connection(&self, stream: TcpStream) -> Result<(), Broken> {
        let Some(https) = &self.https else { return self.http1(stream).await };
        let handshake = timeout(self.head_timeout, mantle_tls::accept_https(stream, https));
        let (stream, is_http2) = tokio::select! {
            shaken = handshake => shaken.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??,
            () = self.stopped.cancelled() => return Ok(()),
        };
        if is_http2 { self.http2(stream).await } else { self.http1(stream).await }
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
mod tests {
    use std::time::Instant;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        time::timeout,
    };

    use super::*;

    const BOUND: Duration = Duration::from_secs(20);
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

    async fn served(limits: Limits) -> (std::net::SocketAddr, CancellationToken) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stopped) = (listener.local_addr().unwrap(), CancellationToken::new());
        let until = stopped.clone();
        let answer = |_: Request<Body>| async { Response::new(Body::from("here")) };
        tokio::spawn(async move { serve(listener, answer, None, &limits, until).await });
        (address, stopped)
    }

    async fn ask(stream: &mut TcpStream) -> String {
        stream.write_all(REQUEST).await.unwrap();
        let mut answer = vec![0; 4096];
        let length = timeout(BOUND, stream.read(&mut answer)).await.unwrap().unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    }

    #[tokio::test]
    async fn clients_that_say_nothing_are_left() {
        let (address, _stopped) = served(Limits { head_timeout_ms: 200, ..Limits::default() }).await;
        for said in [&b""[..], b"GET / HTTP/1.1\r\nhost: x", REQUEST] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(said).await.unwrap();
            let mut answer = Vec::new();
            timeout(BOUND, stream.read_to_end(&mut answer)).await.expect("the connection stays open").unwrap();
        }
    }

    #[tokio::test]
    async fn connections_over_the_bound_wait() {
        let (address, _stopped) = served(Limits { connections_max: 1, ..Limits::default() }).await;
        let mut first = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut first).await.ends_with("here"));
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(REQUEST).await.unwrap();
        let mut byte = [0];
        assert!(timeout(Duration::from_millis(300), second.read(&mut byte)).await.is_err(), "it was answered");
        drop(first);
        assert_eq!(timeout(BOUND, second.read(&mut byte)).await.unwrap().unwrap(), 1);
    }

    #[tokio::test]
    async fn a_shutdown_does_not_wait_for_idle_clients() {
        let (address, stopped) = served(Limits::default()).await;
        let mut client = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut client).await.ends_with("here"));
        let begin = Instant::now();
        stopped.cancel();
        assert_eq!(timeout(BOUND, client.read(&mut [0])).await.unwrap().unwrap(), 0);
        assert!(begin.elapsed() < BOUND);
    }

    mod https {
        use std::path::Path;

        use axum::body::Body;
        use http_body_util::BodyExt;
        use hyper::client::conn;
        use mantle_tls::{
            MinimumVersion,
            testing::{Authority, Files},
        };
        use rustls::{ClientConfig, RootCertStore, pki_types::CertificateDer, pki_types::pem::PemObject};
        use tokio_rustls::{TlsConnector, client::TlsStream};

        use super::*;

        /// A server with a certificate for `localhost`, and what a client trusts.
        struct Scene {
            address: std::net::SocketAddr,
            stopped: CancellationToken,
            folder: tempfile::TempDir,
        }

        impl Scene {
            async fn new(minimum_version: MinimumVersion, limits: Limits) -> Self {
                let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::default());
                let files = Files::new(folder.path(), &[&authority], &authority, ("", "localhost"));
                let https =
                    Https { certificate_file: files.path("own.crt"), key_file: files.path("own.key"), minimum_version };
                let https = Live::load(https).unwrap();
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let (address, stopped) = (listener.local_addr().unwrap(), CancellationToken::new());
                let answer = |request: Request<Body>| async move {
                    let host = request.headers().get("host").map(|host| host.to_str().unwrap().to_owned());
                    Response::new(Body::from(host.unwrap_or_default()))
                };
                let until = stopped.clone();
                tokio::spawn(async move { serve(listener, answer, Some(https), &limits, until).await });
                Self { address, stopped, folder }
            }

            async fn connect(
                &self,
                protocol: &[u8],
                versions: &[&'static rustls::SupportedProtocolVersion],
            ) -> std::io::Result<TlsStream<TcpStream>> {
                let mut roots = RootCertStore::empty();
                let own: &Path = self.folder.path();
                roots.add(CertificateDer::from_pem_file(own.join("ca.crt")).unwrap()).unwrap();
                let provider = rustls::crypto::ring::default_provider().into();
                let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
                let mut config = config.with_root_certificates(roots).with_no_client_auth();
                config.alpn_protocols = vec![protocol.to_vec()];
                let stream = TcpStream::connect(self.address).await?;
                TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await
            }
        }

        const ALL: &[&rustls::SupportedProtocolVersion] = rustls::ALL_VERSIONS;

        #[tokio::test]
        async fn both_versions_of_http_are_served() {
            let scene = Scene::new(MinimumVersion::Tls12, Limits::default()).await;
            let stream = scene.connect(b"http/1.1", &[&rustls::version::TLS12]).await.unwrap();
            let (mut sender, connection) = conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            let request = Request::get("/").header("host", "localhost").body(Body::empty()).unwrap();
            let answer = sender.send_request(request).await.unwrap().into_body().collect().await.unwrap().to_bytes();
            assert_eq!(answer, "localhost");

            let stream = scene.connect(b"h2", ALL).await.unwrap();
            let (sender, connection) =
                conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            for _ in 0..2 {
                let request = Request::get("https://localhost:9/").body(Body::empty()).unwrap();
                let answer = sender.clone().send_request(request).await.unwrap().into_body();
                assert_eq!(answer.collect().await.unwrap().to_bytes(), "localhost:9", "the signed header");
            }
        }

        #[tokio::test]
        async fn an_old_version_and_a_client_without_tls_are_refused() {
            let limits = Limits { head_timeout_ms: 500, ..Limits::default() };
            let scene = Scene::new(MinimumVersion::Tls13, limits).await;
            assert!(scene.connect(b"http/1.1", &[&rustls::version::TLS12]).await.is_err());
            assert!(scene.connect(b"http/1.1", ALL).await.is_ok());
            for said in [REQUEST, b""] {
                let mut stream = TcpStream::connect(scene.address).await.unwrap();
                stream.write_all(said).await.unwrap();
                let mut answer = Vec::new();
                let _ = timeout(BOUND, stream.read_to_end(&mut answer)).await.expect("the connection stays open");
                assert!(!answer.starts_with(b"HTTP"), "an answer in clear");
            }
        }

        #[tokio::test]
        async fn a_connection_without_requests_is_closed() {
            let scene = Scene::new(MinimumVersion::Tls12, Limits { head_timeout_ms: 300, ..Limits::default() }).await;
            let stream = scene.connect(b"h2", ALL).await.unwrap();
            let (sender, connection) =
                conn::http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            timeout(BOUND, connection).await.expect("the connection stays open").unwrap();
            drop(sender);
        }

        #[tokio::test]
        async fn a_shutdown_does_not_wait_for_idle_clients_of_http2() {
            let scene = Scene::new(MinimumVersion::Tls12, Limits::default()).await;
            let stream = scene.connect(b"h2", ALL).await.unwrap();
            let (mut sender, connection) =
                conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            let connection = tokio::spawn(connection);
            let request = Request::get("https://localhost/").body(Body::empty()).unwrap();
            sender.send_request(request).await.unwrap();
            scene.stopped.cancel();
            timeout(BOUND, connection).await.expect("the connection stays open").unwrap().unwrap();
            drop(sender);
        }

        #[tokio::test]
        async fn a_replaced_certificate_is_used() {
            let folder = tempfile::tempdir().unwrap();
            let (old, new) = (Authority::default(), Authority::default());
            let files = Files::new(folder.path(), &[&old], &old, ("", "localhost"));
            let https = Https {
                certificate_file: files.path("own.crt"),
                key_file: files.path("own.key"),
                minimum_version: MinimumVersion::Tls12,
            };
            let https = Live::load(https).unwrap();
            let before = https.current();
            files.replace(&new, ("", "localhost"), |_| ());
            assert!(https.reload().unwrap() && !Arc::ptr_eq(&before, &https.current()));
        }
    }
}
