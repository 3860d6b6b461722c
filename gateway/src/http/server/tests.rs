//! Connections of clients: their bounds, and the versions of HTTP and TLS.

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
    tokio::spawn(async move { serve(listener, answer, Accepts::Plain, &limits, until).await });
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
            Self::that_accepts(Accepts::Https, minimum_version, limits).await
        }

        async fn that_accepts(
            accepts: fn(Live<Https>) -> Accepts,
            minimum_version: MinimumVersion,
            limits: Limits,
        ) -> Self {
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
            tokio::spawn(async move { serve(listener, answer, accepts(https), &limits, until).await });
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
        let (sender, connection) = conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
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

    /// While clients change to HTTPS. Each byte may come by itself.
    #[tokio::test]
    async fn clients_with_and_without_tls_are_served_at_one_address() {
        let limits = Limits { head_timeout_ms: 500, ..Limits::default() };
        let scene = Scene::that_accepts(Accepts::Both, MinimumVersion::Tls12, limits).await;
        for protocol in [&b"http/1.1"[..], b"h2"] {
            assert!(scene.connect(protocol, ALL).await.is_ok());
        }
        let mut plain = TcpStream::connect(scene.address).await.unwrap();
        plain.write_all(&REQUEST[..1]).await.unwrap();
        plain.flush().await.unwrap();
        plain.write_all(&REQUEST[1..]).await.unwrap();
        let mut answer = vec![0; 4096];
        let length = timeout(BOUND, plain.read(&mut answer)).await.unwrap().unwrap();
        assert!(answer[..length].ends_with(b"localhost"));
        let mut silent = TcpStream::connect(scene.address).await.unwrap();
        let read = timeout(BOUND, silent.read(&mut [0])).await.expect("the connection stays open");
        assert!(matches!(read, Ok(0) | Err(_)));
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
