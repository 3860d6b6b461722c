//! TLS to PostgreSQL and PgBouncer, always with the server's name verified (`sslmode=verify-full`).

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{
    Config,
    config::{ChannelBinding, SslMode},
    tls::MakeTlsConnect,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    credentials::{self, Files},
    live::Live,
    settings::is_loopback,
};

/// Certificates for connections to PostgreSQL. The server's name is always verified.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PostgresTls {
    /// Certificates of the authorities that may sign the server's certificate, in PEM.
    pub ca_file: PathBuf,
    /// A client certificate in PEM, where the server asks for one.
    #[serde(default)]
    pub certificate_file: Option<PathBuf>,
    /// Its private key in PEM. Users other than the owner and the group may not read it.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The name in the server's certificate, if it is not `host`: the name that all servers behind a proxy have.
    #[serde(default)]
    pub server_name: Option<String>,
}

impl Files for PostgresTls {
    type Made = Arc<ClientConfig>;

    fn paths(&self) -> Vec<(&'static str, &Path)> {
        let mut paths = vec![("postgresql_authority", &*self.ca_file)];
        paths.extend(self.certificate_file.as_deref().map(|path| ("postgresql_certificate", path)));
        paths.extend(self.key_file.as_deref().map(|path| ("postgresql_key", path)));
        paths
    }

    fn make(&self) -> Result<Self::Made> {
        ensure!(
            self.certificate_file.is_some() == self.key_file.is_some(),
            "certificate_file and key_file belong together"
        );
        let builder = ClientConfig::builder_with_provider(credentials::provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(credentials::roots(&self.ca_file)?);
        let config = match (&self.certificate_file, &self.key_file) {
            (Some(certificate), Some(key)) => builder
                .with_client_auth_cert(credentials::certificates(certificate)?, credentials::key(key)?)
                .context("certificate_file and key_file")?,
            _ => builder.with_no_client_auth(),
        };
        Ok(Arc::new(config))
    }
}

/// Checks the settings of a connection to a database: it needs TLS, unless the host is this machine or the operator says so.
///
/// # Errors
/// The settings contradict each other, or lack TLS.
pub fn check_database(host: &str, port: u16, tls: Option<&PostgresTls>, plain: bool) -> Result<()> {
    ensure!(!(plain && tls.is_some()), "postgres.plain and postgres.tls exclude each other");
    if plain || tls.is_some() || host.starts_with('/') {
        return Ok(());
    }
    // A name that is not known yet is somebody else's.
    let is_here = is_loopback(&format!("{host}:{port}")).unwrap_or(false);
    ensure!(
        is_here,
        "PostgreSQL at `{host}` is on another machine: add the section [postgres.tls], or `plain = true` to do without TLS"
    );
    Ok(())
}

/// Connects to PostgreSQL, with TLS if there are certificates. Clones share the certificates.
#[derive(Clone)]
pub struct PostgresConnector(Option<Live<PostgresTls>>);

impl PostgresConnector {
    /// Reads the certificates.
    ///
    /// # Errors
    /// A file is missing or not what it should be.
    pub fn load(tls: Option<PostgresTls>) -> Result<Self> {
        tls.map(Live::load).transpose().map(Self)
    }

    /// The certificates, to watch them.
    pub fn live(&self) -> Option<&Live<PostgresTls>> {
        self.0.as_ref()
    }

    /// The settings of a connection to a host, which may be the directory of a Unix socket. `is_configured`: it is the host of
    /// the settings, and not another server that PostgreSQL named.
    ///
    /// # Errors
    /// A `server_name` needs an address as `host`, so that both can be given.
    pub fn settings(&self, host: &str, is_configured: bool) -> Result<Config> {
        let mut config = Config::new();
        let tls = self.0.as_ref().filter(|_| !host.starts_with('/'));
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        match tls.and_then(|tls| tls.files().server_name.as_ref()).filter(|_| is_configured) {
            Some(name) => {
                let address =
                    host.parse().with_context(|| format!("server_name needs an address as host, not `{host}`"))?;
                config.host(name).hostaddr(address);
            }
            None => {
                config.host(host);
            }
        }
        Ok(config)
    }

    /// Binds the password's exchange to the TLS connection. Not for PgBouncer, which does not know it.
    pub fn bind_channel(&self, config: &mut Config) {
        if config.get_ssl_mode() == SslMode::Require {
            config.channel_binding(ChannelBinding::Require);
        }
    }
}

/// For [`Config::connect`]; takes the newest certificates for each connection.
impl<S> MakeTlsConnect<S> for PostgresConnector
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = <MakeRustlsConnect as MakeTlsConnect<S>>::Stream;
    type TlsConnect = <MakeRustlsConnect as MakeTlsConnect<S>>::TlsConnect;
    type Error = io::Error;

    fn make_tls_connect(&mut self, name: &str) -> io::Result<Self::TlsConnect> {
        let config = match &self.0 {
            Some(live) => (*live.current()).clone(),
            // Not used: the settings say so.
            None => Arc::new(
                ClientConfig::builder_with_provider(credentials::provider())
                    .with_safe_default_protocol_versions()
                    .map_err(io::Error::other)?
                    .with_root_certificates(RootCertStore::empty())
                    .with_no_client_auth(),
            ),
        };
        let made: Result<Self::TlsConnect, _> =
            MakeTlsConnect::<S>::make_tls_connect(&mut MakeRustlsConnect::new((*config).clone()), name);
        made.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::testing::{
        Authority, Files as TestFiles,
        postgres::{PostgresStandIn, Session},
    };

    const HOST: &str = "127.0.0.1";
    const COMMON: &str = "tafdb";
    const SCRAM: &[&str] = &["SCRAM-SHA-256"];
    const BOUND_SCRAM: &[&str] = &["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"];

    /// A client and its folder.
    struct Client {
        connector: PostgresConnector,
        _folder: TempDir,
    }

    impl Client {
        fn new(authority: &Authority, server_name: Option<&str>) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let files = TestFiles::new(folder.path(), &[authority], authority, ("mantle-peer", "index"));
            let connector = PostgresConnector::load(Some(PostgresTls {
                ca_file: files.path("ca.crt"),
                certificate_file: Some(files.path("own.crt")),
                key_file: Some(files.path("own.key")),
                server_name: server_name.map(str::to_owned),
            }));
            Self { connector: connector.unwrap(), _folder: folder }
        }

        /// How far it goes with a server.
        async fn meets(&self, server: &mut PostgresStandIn, is_configured: bool, is_bound: bool) -> Session {
            let mut config = self.connector.settings(HOST, is_configured).unwrap();
            if is_bound {
                self.connector.bind_channel(&mut config);
            }
            config.port(server.port()).user("index").password("secret");
            assert!(config.connect(self.connector.clone()).await.is_err(), "the stand-in lets nobody in");
            server.session().await
        }
    }

    /// A server with a certificate for one name.
    async fn server(
        trusted: &Authority,
        issuer: &Authority,
        name: &str,
        offered: &'static [&'static str],
    ) -> PostgresStandIn {
        let folder = tempfile::tempdir().unwrap();
        let files = TestFiles::new(folder.path(), &[trusted], issuer, ("", name));
        PostgresStandIn::new(Some(&files), offered).await
    }

    #[tokio::test]
    async fn a_session_begins_only_with_the_server_of_that_name_and_authority() {
        let (ca, foreign) = (Authority::default(), Authority::default());
        let (by_host, by_name) = (Client::new(&ca, None), Client::new(&ca, Some(COMMON)));
        for (client, is_configured, issuer, name, is_accepted) in [
            (&by_host, true, &ca, HOST, true),
            (&by_host, true, &foreign, HOST, false),
            (&by_host, true, &ca, "127.0.0.2", false),
            (&by_host, true, &ca, "localhost", false),
            (&by_host, true, &ca, COMMON, false),
            // Behind a proxy the servers' common name counts, and only that.
            (&by_name, true, &ca, COMMON, true),
            (&by_name, true, &foreign, COMMON, false),
            (&by_name, true, &ca, HOST, false),
            // A server that PostgreSQL named is no proxy: it has to be the one at that address.
            (&by_name, false, &ca, HOST, true),
            (&by_name, false, &ca, COMMON, false),
            (&by_name, false, &foreign, HOST, false),
        ] {
            let mut server = server(&ca, issuer, name, SCRAM).await;
            let session = client.meets(&mut server, is_configured, false).await;
            let what = format!("{name}, configured: {is_configured}, accepted: {is_accepted}");
            if is_accepted {
                assert!(session.parameters.contains(&"index".to_owned()), "{what}: {session:?}");
                assert!(session.has_certificate, "{what}");
                assert_eq!(session.mechanism.as_deref(), Some(SCRAM[0]), "{what}");
            } else {
                assert_eq!(session, Session::default(), "{what}");
            }
        }
        assert!(by_name.connector.settings("localhost", true).is_err(), "a common name needs an address");
    }

    #[tokio::test]
    async fn a_password_is_bound_to_the_connection() {
        let ca = Authority::default();
        let client = Client::new(&ca, None);
        for (offered, is_bound, chosen) in [
            (BOUND_SCRAM, true, Some(BOUND_SCRAM[0])),
            // Of somebody in between, whose certificate the client would accept.
            (SCRAM, true, None),
            // PgBouncer, which does not know it.
            (SCRAM, false, Some(SCRAM[0])),
        ] {
            let session = client.meets(&mut server(&ca, &ca, HOST, offered).await, true, is_bound).await;
            assert!(!session.parameters.is_empty());
            assert_eq!(session.mechanism.as_deref(), chosen, "{offered:?}, bound: {is_bound}");
        }
    }

    #[tokio::test]
    async fn a_server_without_tls_is_told_nothing() {
        let client = Client::new(&Authority::default(), None);
        let mut server = PostgresStandIn::new(None, SCRAM).await;
        assert_eq!(client.meets(&mut server, true, false).await, Session::default());
    }

    #[tokio::test]
    async fn without_certificates_there_is_no_tls() {
        let connector = PostgresConnector::load(None).unwrap();
        let mut config = connector.settings(HOST, true).unwrap();
        connector.bind_channel(&mut config);
        assert_eq!(config.get_ssl_mode(), SslMode::Disable);
        assert_eq!(config.get_channel_binding(), ChannelBinding::Prefer);
        let with = Client::new(&Authority::default(), None);
        assert_eq!(with.connector.settings("/run/postgresql", true).unwrap().get_ssl_mode(), SslMode::Disable);
    }
}
