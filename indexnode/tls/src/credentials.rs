//! The files of certificates and keys, as configurations of rustls.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
    SupportedProtocolVersion,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    version::{TLS12, TLS13},
};
use serde::Deserialize;
use x509_cert::{Certificate, der::Decode};

use crate::{
    identity::{Identity, Role},
    settings::TlsSettings,
};

/// What gRPC speaks.
pub const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";
/// The bits of a key file's mode that it may not have.
const TOO_OPEN: u32 = 0o027;
const DAY: Duration = Duration::from_secs(86_400);

pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Files that are read together, and what is made of them.
pub trait Files: Sized + Send + Sync + 'static {
    /// What is made of them.
    type Made: Send + Sync;

    /// The files, by the name that metrics give them.
    fn paths(&self) -> Vec<(&'static str, &Path)>;

    /// Reads and checks them.
    fn make(&self) -> Result<Self::Made>;
}

/// Both ends of a connection between Mantle's processes.
pub struct Mutual {
    pub server: Arc<ServerConfig>,
    pub client: Arc<ClientConfig>,
    /// Verifies a client again, after it was let in.
    pub clients: Arc<dyn ClientCertVerifier>,
    /// Verifies a server again, after it was connected to.
    pub servers: Arc<dyn ServerCertVerifier>,
}

impl Files for TlsSettings {
    type Made = Mutual;

    fn paths(&self) -> Vec<(&'static str, &Path)> {
        vec![("authority", &self.ca_file), ("certificate", &self.certificate_file), ("key", &self.key_file)]
    }

    fn make(&self) -> Result<Mutual> {
        let roots = Arc::new(roots(&self.ca_file)?);
        let chain = certificates(&self.certificate_file)?;
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
            // A call without a certificate is answered, by the service: UNAUTHENTICATED says more than a broken connection.
            .allow_unauthenticated()
            .build()
            .context("the authorities")?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(clients.clone())
            .with_single_cert(chain.clone(), key(&self.key_file)?)
            .context("certificate_file and key_file")?;
        server.alpn_protocols = vec![HTTP2.to_vec()];
        // A resumed session would not show its certificate again, after the authority was replaced.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let webpki = WebPkiServerVerifier::builder_with_provider(roots, provider()).build()?;
        let servers = Arc::new(PeersOnly(webpki));
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(servers.clone())
            .with_client_auth_cert(chain, key(&self.key_file)?)
            .context("certificate_file and key_file")?;
        client.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(Mutual { server: Arc::new(server), client: Arc::new(client), clients, servers })
    }
}

/// Verifies a server as usual, and that it is an IndexNode: a gateway's certificate is no server's.
#[derive(Debug)]
struct PeersOnly(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for PeersOnly {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        match Identity::of(end_entity) {
            Ok(identity) if identity.has(Role::Peer) => Ok(verified),
            _ => Err(rustls::Error::General(format!("the server's certificate has no unit {}", Role::Peer.unit()))),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        self.0.root_hint_subjects()
    }
}

/// The oldest version of TLS that a server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub enum MinimumVersion {
    /// TLS 1.2, with forward secrecy and authenticated ciphers only.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    Tls13,
}

/// HTTPS for users: a server's certificate; users show signatures or tokens, not certificates.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Https {
    /// The certificate for this service's hosts in PEM, then those between it and the authority.
    pub certificate_file: PathBuf,
    /// Its private key in PEM. Users other than the owner and the group may not read it.
    pub key_file: PathBuf,
    /// The oldest version of TLS that clients may speak, `"1.2"` (if it is not given) or `"1.3"`.
    #[serde(default)]
    pub minimum_version: MinimumVersion,
}

impl Files for Https {
    type Made = Arc<ServerConfig>;

    fn paths(&self) -> Vec<(&'static str, &Path)> {
        vec![("https_certificate", &self.certificate_file), ("https_key", &self.key_file)]
    }

    fn make(&self) -> Result<Self::Made> {
        let versions: &[&SupportedProtocolVersion] = match self.minimum_version {
            MinimumVersion::Tls12 => &[&TLS13, &TLS12],
            MinimumVersion::Tls13 => &[&TLS13],
        };
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_single_cert(certificates(&self.certificate_file)?, key(&self.key_file)?)
            .context("certificate_file and key_file")?;
        server.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        Ok(Arc::new(server))
    }
}

/// The certificates of a file, at least one.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let at = || format!("{}", path.display());
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).with_context(at)?.collect();
    let found = found.with_context(at)?;
    ensure!(!found.is_empty(), "{} has no certificate", path.display());
    Ok(found)
}

/// A store of the authorities of a file.
pub fn roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).with_context(|| format!("{}", path.display()))?;
    }
    Ok(roots)
}

pub fn key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let at = || format!("{}", path.display());
    let mode = fs::metadata(path).with_context(at)?.permissions().mode();
    if mode & TOO_OPEN != 0 {
        bail!("{} may be read or written by others (mode {:o}): make it 0600", path.display(), mode & 0o777);
    }
    PrivateKeyDer::from_pem_file(path).with_context(at)
}

/// Days until the first certificate of a file expires; negative afterwards. `None` for a file without certificates.
pub fn days_left(path: &Path) -> Option<f64> {
    let seconds_left = |certificate: &CertificateDer<'_>| {
        let validity = Certificate::from_der(certificate).ok()?.tbs_certificate.validity;
        let end = validity.not_after.to_unix_duration().as_secs_f64();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Some(end - now)
    };
    let left = certificates(path).ok()?.iter().filter_map(seconds_left).reduce(f64::min)?;
    Some(left / DAY.as_secs_f64())
}
