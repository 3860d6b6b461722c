//! A stand-in for PostgreSQL that negotiates and does nothing else: TLS, the begin of a session, the offer of ways to log in.
//! It tells how far each client goes with a server that shows these certificates.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use rustls::{ServerConfig, server::WebPkiClientVerifier};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::Files;
use crate::{credentials, settings::Phase};

const BOUND: Duration = Duration::from_secs(20);
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
const AUTHENTICATION_SASL: i32 = 10;
const LENGTH: usize = 4;

/// How far a client went; empty if it asked for no TLS, or refused the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// The names and values with which it began a session.
    pub parameters: Vec<String>,
    /// Whether it showed a certificate.
    pub has_certificate: bool,
    /// The way to log in that it chose among those that were offered.
    pub mechanism: Option<String>,
}

/// The stand-in. It ends with the runtime.
pub struct PostgresStandIn {
    address: SocketAddr,
    sessions: mpsc::UnboundedReceiver<Session>,
}

impl PostgresStandIn {
    /// Listens on a free port of 127.0.0.1. It shows the certificate of these files, or has no TLS; it offers these ways to log in.
    pub async fn new(files: Option<&Files>, mechanisms: &'static [&'static str]) -> Self {
        let acceptor = files.map(|files| TlsAcceptor::from(Arc::new(server_config(files))));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, (sender, sessions)) = (listener.local_addr().unwrap(), mpsc::unbounded_channel());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut session = Session::default();
                let _ = negotiate(stream, acceptor.as_ref(), mechanisms, &mut session).await;
                if sender.send(session).is_err() {
                    break;
                }
            }
        });
        Self { address, sessions }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// How far the next client went.
    pub async fn session(&mut self) -> Session {
        timeout(BOUND, self.sessions.recv()).await.expect("a client").unwrap()
    }
}

fn server_config(files: &Files) -> ServerConfig {
    let settings = files.settings(Phase::Strict);
    let roots = credentials::roots(&settings.ca_file).unwrap();
    let provider = credentials::provider();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
        .with_single_cert(
            credentials::certificates(&settings.certificate_file).unwrap(),
            credentials::key(&settings.key_file).unwrap(),
        )
        .unwrap()
}

async fn negotiate(
    mut stream: TcpStream,
    acceptor: Option<&TlsAcceptor>,
    mechanisms: &[&str],
    session: &mut Session,
) -> std::io::Result<()> {
    let mut request = [0; SSL_REQUEST.len()];
    stream.read_exact(&mut request).await?;
    assert_eq!(request, SSL_REQUEST, "a client begins without TLS");
    let Some(acceptor) = acceptor else {
        stream.write_all(b"N").await?;
        session.parameters = strings(&body(&mut stream).await?);
        return Ok(());
    };
    stream.write_all(b"S").await?;
    let mut stream = acceptor.accept(stream).await?;
    session.parameters = strings(body(&mut stream).await?.get(4..).unwrap_or_default());
    session.has_certificate = stream.get_ref().1.peer_certificates().is_some();

    let mut offer = AUTHENTICATION_SASL.to_be_bytes().to_vec();
    for mechanism in mechanisms {
        offer.extend([mechanism.as_bytes(), b"\0"].concat());
    }
    offer.push(0);
    stream.write_all(b"R").await?;
    stream.write_u32(u32::try_from(offer.len()).unwrap() + 4).await?;
    stream.write_all(&offer).await?;
    stream.flush().await?;
    stream.read_u8().await?; // `p`, the kind of the answer
    session.mechanism = strings(&body(&mut stream).await?).into_iter().next();
    Ok(())
}

/// What follows a length that counts itself.
async fn body(stream: &mut (impl AsyncReadExt + Unpin)) -> std::io::Result<Vec<u8>> {
    let length = timeout(BOUND, stream.read_u32()).await?? as usize;
    let mut body = vec![0; length - LENGTH];
    stream.read_exact(&mut body).await?;
    Ok(body)
}

fn strings(bytes: &[u8]) -> Vec<String> {
    bytes.split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned()).collect()
}
