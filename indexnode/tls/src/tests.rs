//! Both ends of real connections, with certificates that are good, foreign, expired, for another host, or replaced.

use std::{fs, net::SocketAddr, ops::Deref, os::unix::fs::PermissionsExt, time::Duration};

use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::client::TlsStream;

use crate::{
    Accepted, Phase, Role, Security, Stream, Tls, connect, incoming,
    server::{Strangers, incoming_within},
    testing::{self, Authority, CertificateParams},
};

const BOUND: Duration = Duration::from_secs(20);
const HOST: &str = "127.0.0.1";

/// Files that are removed at the end.
struct Files {
    files: testing::Files,
    _folder: TempDir,
}

impl Files {
    fn new(trusted: &[&Authority], authority: &Authority, unit: &str, host: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { files: testing::Files::new(folder.path(), trusted, authority, (unit, host)), _folder: folder }
    }

    fn load(&self, phase: Phase) -> Tls {
        Tls::load(self.settings(phase)).unwrap()
    }
}

impl Deref for Files {
    type Target = testing::Files;

    fn deref(&self) -> &testing::Files {
        &self.files
    }
}

struct Server {
    address: SocketAddr,
    accepted: mpsc::Receiver<Accepted>,
}

impl Server {
    async fn new(tls: Option<Tls>) -> Self {
        let listener = TcpListener::bind((HOST, 0)).await.unwrap();
        Self { address: listener.local_addr().unwrap(), accepted: incoming(listener, tls) }
    }

    async fn within(tls: Option<Tls>, strangers: Strangers) -> Self {
        let listener = TcpListener::bind((HOST, 0)).await.unwrap();
        Self { address: listener.local_addr().unwrap(), accepted: incoming_within(listener, tls, strangers) }
    }

    async fn accept(&mut self) -> Accepted {
        timeout(BOUND, self.accepted.recv()).await.expect("a connection").unwrap()
    }

    async fn connect(&self, tls: &Tls) -> std::io::Result<Stream> {
        timeout(BOUND, connect(&self.address.to_string(), Some(tls))).await.expect("an answer")
    }

    /// Connects, and sends a byte: with TLS 1.3 a client learns only then that it was refused.
    async fn is_refused(&mut self, tls: &Tls) -> bool {
        let Ok(mut stream) = self.connect(tls).await else { return true };
        let _ = stream.write_all(b"x").await;
        matches!(timeout(BOUND, stream.read(&mut [0])).await.expect("an answer"), Ok(0) | Err(_))
    }
}

fn role_of(accepted: &Accepted) -> Option<Role> {
    let Security::Tls(Some(identity)) = &accepted.1.security else { return None };
    [Role::Peer, Role::Gateway, Role::Administrator].into_iter().find(|role| identity.has(*role))
}

async fn exchange(from: &mut Stream, to: &mut Stream) -> std::io::Result<()> {
    from.write_all(b"hello").await?;
    from.flush().await?;
    let mut got = [0; 5];
    timeout(BOUND, to.read_exact(&mut got)).await.expect("bytes")?;
    assert_eq!(&got, b"hello");
    Ok(())
}

#[tokio::test]
async fn both_ends_know_each_other() {
    let ca = Authority::default();
    let mut server = Server::new(Some(Files::new(&[&ca], &ca, "mantle-peer", HOST).load(Phase::Strict))).await;
    for (unit, role) in [("mantle-peer", Role::Peer), ("mantle-gateway", Role::Gateway)] {
        let client = Files::new(&[&ca], &ca, unit, "anything.example").load(Phase::Strict);
        let mut stream = server.connect(&client).await.unwrap();
        let mut accepted = server.accept().await;
        assert_eq!(role_of(&accepted), Some(role));
        exchange(&mut stream, &mut accepted.0).await.unwrap();
        exchange(&mut accepted.0, &mut stream).await.unwrap();
    }
}

#[tokio::test]
async fn a_client_refuses_a_server_that_is_not_the_one() {
    let (ca, foreign) = (Authority::default(), Authority::default());
    let client = Files::new(&[&ca], &ca, "mantle-gateway", HOST).load(Phase::Strict);
    for (issuer, unit, host) in [
        (&foreign, "mantle-peer", HOST),
        (&ca, "mantle-gateway", HOST),
        (&ca, "", HOST),
        (&ca, "mantle-peer", "127.0.0.2"),
        (&ca, "mantle-peer", "localhost"),
    ] {
        let server = Server::new(Some(Files::new(&[&ca], issuer, unit, host).load(Phase::Strict))).await;
        assert!(server.connect(&client).await.is_err(), "{unit} {host}");
    }
}

#[tokio::test]
async fn a_server_refuses_certificates_that_are_not_good() {
    let (ca, foreign) = (Authority::default(), Authority::default());
    let mut server = Server::new(Some(Files::new(&[&ca], &ca, "mantle-peer", HOST).load(Phase::Strict))).await;
    let files = Files::new(&[&ca], &foreign, "mantle-peer", HOST);
    assert!(server.is_refused(&files.load(Phase::Strict)).await, "of another authority");
    let year = |params: &mut CertificateParams, from: i32| {
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(from + 1, 1, 1);
    };
    files.replace(&ca, ("mantle-peer", HOST), |params| year(params, 2020));
    assert!(server.is_refused(&files.load(Phase::Strict)).await, "expired");
    files.replace(&ca, ("mantle-peer", HOST), |params| year(params, 2120));
    assert!(server.is_refused(&files.load(Phase::Strict)).await, "not valid yet");
    files.replace(&ca, ("mantle-peer", HOST), |params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    assert!(server.is_refused(&files.load(Phase::Strict)).await, "a server's only");
}

#[tokio::test]
async fn the_phases_lead_from_plain_to_tls() {
    let ca = Authority::default();
    let files = |unit| Files::new(&[&ca], &ca, unit, HOST);
    for (phase, is_plain) in [(Phase::Accept, true), (Phase::Connect, false), (Phase::Strict, false)] {
        let mut server = Server::new(Some(files("mantle-peer").load(Phase::Accept))).await;
        let mut stream = server.connect(&files("mantle-peer").load(phase)).await.unwrap();
        // The server reads the first byte to tell what it is.
        stream.write_all(b"PRI").await.unwrap();
        stream.flush().await.unwrap();
        let accepted = server.accept().await;
        assert_eq!(matches!(accepted.1.security, Security::Plain), is_plain, "{phase:?}");
    }
}

#[tokio::test]
async fn a_client_without_certificate_is_known_as_such() {
    let ca = Authority::default();
    let mut server = Server::new(Some(Files::new(&[&ca], &ca, "mantle-peer", HOST).load(Phase::Strict))).await;
    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0").await.unwrap();
    assert!(matches!(server.accept().await.1.security, Security::Plain));

    let stream = without_certificate(&server, &ca).await;
    assert!(matches!(server.accept().await.1.security, Security::Tls(None)));
    drop(stream);
}

async fn without_certificate(server: &Server, ca: &Authority) -> TlsStream<TcpStream> {
    let roots = crate::credentials::roots(&Files::new(&[ca], ca, "", HOST).path("ca.crt")).unwrap();
    let provider = rustls::crypto::ring::default_provider().into();
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(server.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    connector.connect(HOST.try_into().unwrap(), stream).await.unwrap()
}

/// A client that speaks no TLS, and says something.
async fn plain(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"PRI").await.unwrap();
    stream
}

/// Waits for the end of a connection, which the server makes.
async fn ends(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    matches!(timeout(BOUND, stream.read(&mut [0])).await.expect("an end"), Ok(0) | Err(_))
}

/// Reads and drops everything that arrives on a connection, until it ends.
fn serve(mut accepted: Stream) -> JoinHandle<std::io::ErrorKind> {
    tokio::spawn(async move {
        loop {
            match accepted.read(&mut [0; 64]).await {
                Ok(0) => return std::io::ErrorKind::UnexpectedEof,
                Ok(_) => (),
                Err(e) => return e.kind(),
            }
        }
    })
}

#[tokio::test]
async fn whoever_has_no_role_is_left_after_a_while() {
    let ca = Authority::default();
    let files = |unit| Files::new(&[&ca], &ca, unit, HOST);
    let strangers = Strangers { most: 9, time: Duration::from_millis(300) };
    let mut server = Server::within(Some(files("mantle-peer").load(Phase::Strict)), strangers).await;
    let mut known = server.connect(&files("mantle-gateway").load(Phase::Strict)).await.unwrap();
    let mut accepted = server.accept().await.0;

    let mut talks = plain(&server).await;
    let plain = serve(server.accept().await.0);
    let mut silent = without_certificate(&server, &ca).await;
    let unknown = serve(server.accept().await.0);
    let mut without_role = server.connect(&files("ops").load(Phase::Strict)).await.unwrap();
    let of_no_role = serve(server.accept().await.0);
    let talk = async {
        while talks.write_all(b"x").await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(BOUND, talk).await.expect("an end");
    for ended in [plain, unknown, of_no_role] {
        assert_eq!(timeout(BOUND, ended).await.expect("an end").unwrap(), std::io::ErrorKind::TimedOut);
    }
    assert!(ends(&mut silent).await && ends(&mut without_role).await);
    exchange(&mut known, &mut accepted).await.unwrap();
}

#[tokio::test]
async fn a_client_that_does_not_read_is_left_too() {
    let ca = Authority::default();
    let strangers = Strangers { most: 1, time: Duration::from_millis(300) };
    let tls = Files::new(&[&ca], &ca, "mantle-peer", HOST).load(Phase::Strict);
    let mut server = Server::within(Some(tls), strangers).await;
    let _deaf = plain(&server).await;
    let mut accepted = server.accept().await.0;
    let write = async {
        loop {
            if let Err(e) = accepted.write_all(&[0; 1 << 16]).await {
                return e.kind();
            }
        }
    };
    assert_eq!(timeout(BOUND, write).await.expect("an end"), std::io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn only_so_many_without_a_role_are_there_at_a_time() {
    let ca = Authority::default();
    let files = |unit| Files::new(&[&ca], &ca, unit, HOST);
    let strangers = Strangers { most: 2, time: Duration::from_secs(3600) };
    let mut server = Server::within(Some(files("mantle-peer").load(Phase::Strict)), strangers).await;
    let _one = plain(&server).await;
    let one = server.accept().await.0;
    let _two = without_certificate(&server, &ca).await;
    let _held = server.accept().await.0;
    for _ in 0..20 {
        assert!(ends(&mut plain(&server).await).await);
    }
    let _known = server.connect(&files("mantle-gateway").load(Phase::Strict)).await.unwrap();
    assert_eq!(role_of(&server.accept().await), Some(Role::Gateway));
    drop(one);
    let _three = plain(&server).await;
    assert!(matches!(server.accept().await.1.security, Security::Plain));
}

/// Before all speak TLS, those who do not are served.
#[tokio::test]
async fn a_plain_connection_is_no_strangers_where_it_is_allowed() {
    let ca = Authority::default();
    let strangers = Strangers { most: 0, time: Duration::ZERO };
    let files = || Files::new(&[&ca], &ca, "mantle-peer", HOST);
    for tls in [None, Some(files().load(Phase::Accept)), Some(files().load(Phase::Connect))] {
        let mut server = Server::within(tls, strangers).await;
        let mut stream = plain(&server).await;
        let mut accepted = server.accept().await.0;
        accepted.read_exact(&mut [0; 3]).await.unwrap();
        accepted.write_all(b"yes").await.unwrap();
        accepted.flush().await.unwrap();
        timeout(BOUND, stream.read_exact(&mut [0; 3])).await.expect("bytes").unwrap();
    }
}

#[tokio::test]
async fn tasks_that_are_ready_run_before_bytes_leave() {
    let server = Server::new(None).await;
    let mut stream = connect(&server.address.to_string(), None).await.unwrap();
    let other = tokio::spawn(async {});
    stream.write_all(b"a").await.unwrap();
    assert!(other.is_finished());
    let other = tokio::spawn(async {});
    stream.write_all(b"b").await.unwrap();
    assert!(!other.is_finished(), "once for each flush");
}

#[tokio::test]
async fn a_silent_client_holds_up_nobody() {
    let ca = Authority::default();
    let mut server = Server::new(Some(Files::new(&[&ca], &ca, "mantle-peer", HOST).load(Phase::Strict))).await;
    let _silent = TcpStream::connect(server.address).await.unwrap();
    let client = Files::new(&[&ca], &ca, "mantle-gateway", HOST).load(Phase::Strict);
    let _stream = server.connect(&client).await.unwrap();
    assert_eq!(role_of(&server.accept().await), Some(Role::Gateway));
}

/// An authority is replaced: first both are trusted, then every certificate is replaced, then the old one is trusted no more.
#[tokio::test]
async fn an_authority_is_replaced_while_connections_are_open() {
    let (old, new) = (Authority::default(), Authority::default());
    let server_files = Files::new(&[&old], &old, "mantle-peer", HOST);
    let client_files = Files::new(&[&old], &old, "mantle-gateway", HOST);
    let (server_tls, client_tls) = (server_files.load(Phase::Strict), client_files.load(Phase::Strict));
    let mut server = Server::new(Some(server_tls.clone())).await;
    let mut of_old = server.connect(&client_tls).await.unwrap();
    let mut accepted_of_old = server.accept().await.0;

    for files in [&server_files, &client_files] {
        files.trust(&[&old, &new]);
    }
    server_files.replace(&new, ("mantle-peer", HOST), |_| ());
    assert!(server_tls.reload().unwrap() && client_tls.reload().unwrap());
    assert!(!server_tls.reload().unwrap(), "nothing has changed");
    exchange(&mut of_old, &mut accepted_of_old).await.unwrap();
    let mut between = server.connect(&client_tls).await.unwrap();
    let mut accepted_between = server.accept().await.0;
    exchange(&mut between, &mut accepted_between).await.unwrap();

    client_files.replace(&new, ("mantle-gateway", HOST), |_| ());
    client_tls.reload().unwrap();
    let mut of_new = server.connect(&client_tls).await.unwrap();
    let mut accepted_of_new = server.accept().await.0;
    server_files.trust(&[&new]);
    server_tls.reload().unwrap();
    exchange(&mut of_new, &mut accepted_of_new).await.unwrap();
    let refused = exchange(&mut of_old, &mut accepted_of_old).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "an open connection of the old authority");
    assert!(exchange(&mut between, &mut accepted_between).await.is_err());
}

#[tokio::test]
async fn a_client_leaves_a_server_whose_authority_is_removed() {
    let (old, new) = (Authority::default(), Authority::default());
    let mut server = Server::new(Some(Files::new(&[&new], &old, "mantle-peer", HOST).load(Phase::Strict))).await;
    let files = Files::new(&[&old, &new], &new, "mantle-gateway", HOST);
    let tls = files.load(Phase::Strict);
    let mut stream = server.connect(&tls).await.unwrap();
    let mut accepted = server.accept().await.0;
    exchange(&mut accepted, &mut stream).await.unwrap();
    files.trust(&[&new]);
    tls.reload().unwrap();
    let refused = exchange(&mut accepted, &mut stream).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
}

#[tokio::test]
async fn files_that_are_not_good_leave_the_old_ones() {
    let ca = Authority::default();
    let files = Files::new(&[&ca], &ca, "mantle-peer", HOST);
    let tls = files.load(Phase::Strict);
    let good = fs::read(files.path("own.crt")).unwrap();
    for bad in [&b""[..], b"nonsense", b"-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"] {
        fs::write(files.path("own.crt"), bad).unwrap();
        assert!(tls.reload().is_err());
        assert!(Tls::load(files.settings(Phase::Strict)).is_err());
    }
    // A certificate without its key: they are replaced one after the other.
    let (other, _) = ca.issue("mantle-peer", &[HOST], |_| ());
    fs::write(files.path("own.crt"), other.pem()).unwrap();
    assert!(tls.reload().is_err());
    fs::write(files.path("own.crt"), good).unwrap();
    let mut server = Server::new(Some(tls.clone())).await;
    let client = Files::new(&[&ca], &ca, "mantle-gateway", HOST).load(Phase::Strict);
    let _stream = server.connect(&client).await.unwrap();
    assert_eq!(role_of(&server.accept().await), Some(Role::Gateway));

    fs::set_permissions(files.path("own.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let refused = Tls::load(files.settings(Phase::Strict)).err().unwrap();
    assert!(format!("{refused:#}").contains("0600"), "{refused:#}");
}

#[test]
fn days_are_those_of_the_first_to_expire() {
    let ca = Authority::default();
    let files = Files::new(&[&ca], &ca, "mantle-peer", HOST);
    files.replace(&ca, ("mantle-peer", HOST), |params| {
        params.not_after = time::OffsetDateTime::now_utc() + time::Duration::days(30);
    });
    let of = |name: &str| crate::credentials::days_left(&files.path(name));
    assert!((of("own.crt").unwrap() - 30.0).abs() < 0.1);
    let both = fs::read_to_string(files.path("ca.crt")).unwrap() + &fs::read_to_string(files.path("own.crt")).unwrap();
    fs::write(files.path("both"), both).unwrap();
    assert!((of("both").unwrap() - 30.0).abs() < 0.1);
    files.replace(&ca, ("mantle-peer", HOST), |params| params.not_after = rcgen::date_time_ymd(2021, 1, 1));
    assert!(of("own.crt").unwrap() < -1000.0);
    assert_eq!(of("own.key"), None);
}
