//! Where the database is: a URL as libpq takes it, with its parameters for TLS, and libpq's password file. So psql and
//! this program use the same variables (`DATABASE_URL`, `PGPASSFILE`), and no command line has a password.

use std::{env, fs, path::Path, str::FromStr};

use anyhow::{Context, Result, bail, ensure};
use mantle_tls::{PostgresConnector, PostgresTls, is_loopback};
use percent_encoding::percent_decode_str;
use tokio_postgres::{
    Config,
    config::{Host, SslMode},
};

/// A database: address, role, password, certificates. Clones share the certificates.
#[derive(Clone)]
pub struct DatabaseUrl {
    config: Config,
    connector: PostgresConnector,
    /// The URL permits connections to other machines without TLS.
    plain: bool,
}

impl FromStr for DatabaseUrl {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self> {
        let Parameters { url, plain, tls } = without_tls(url)?;
        let mut config: Config = url.parse().context("the URL")?;
        let ports = config.get_ports();
        for (at, host) in config.get_hosts().iter().enumerate() {
            let Host::Tcp(host) = host else { continue };
            check_plain(host, ports.get(at).or(ports.first()).copied().unwrap_or(5432), plain || tls.is_some())?;
        }
        for address in config.get_hostaddrs() {
            check_plain(&address.to_string(), 5432, plain || tls.is_some())?;
        }
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        if config.get_password().is_none()
            && let Some(path) = env::var_os("PGPASSFILE")
            && let Some(password) = password_of(&config, Path::new(&path))?
        {
            config.password(password);
        }
        Ok(Self { config, connector: PostgresConnector::load(tls)?, plain })
    }
}

impl DatabaseUrl {
    /// The settings, and how to connect with them.
    pub fn settings(&self) -> (Config, PostgresConnector) {
        (self.config.clone(), self.connector.clone())
    }

    /// Another server of the same database, with the same role.
    pub fn at(&self, host: &str, port: u16) -> Result<Self> {
        check_plain(host, port, self.plain || self.connector.live().is_some())?;
        let mut config = self.connector.settings(host, false)?;
        config.port(port);
        let given = &self.config;
        given.get_user().map(|user| config.user(user));
        given.get_password().map(|password| config.password(password));
        given.get_dbname().map(|database| config.dbname(database));
        Ok(Self { config, connector: self.connector.clone(), plain: self.plain })
    }
}

/// Connections to other machines use TLS, unless the URL says otherwise. libpq alone would try both, so that an
/// attacker in between could choose.
fn check_plain(host: &str, port: u16, is_chosen: bool) -> Result<()> {
    ensure!(
        is_chosen || is_loopback(&format!("{host}:{port}")).unwrap_or(false),
        "`{host}` is another machine: add sslmode=verify-full&sslrootcert=FILE to the URL, or sslmode=disable to do without TLS"
    );
    Ok(())
}

/// A URL without libpq's parameters for TLS, and what these say.
#[derive(Debug, PartialEq, Eq)]
struct Parameters {
    url: String,
    /// `sslmode=disable`.
    plain: bool,
    tls: Option<PostgresTls>,
}

fn without_tls(url: &str) -> Result<Parameters> {
    let Some((base, query)) = url.split_once('?') else {
        return Ok(Parameters { url: url.to_owned(), plain: false, tls: None });
    };
    let (mut mode, mut authority, mut certificate, mut key) = (None, None, None, None);
    let mut others = Vec::new();
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8().context("the URL")?;
        match name {
            "sslmode" => mode = Some(value.into_owned()),
            "sslrootcert" => authority = Some(value.into_owned().into()),
            "sslcert" => certificate = Some(value.into_owned().into()),
            "sslkey" => key = Some(value.into_owned().into()),
            _ => others.push(pair),
        }
    }
    let url = if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
    match (mode.as_deref(), authority) {
        (Some("disable"), None) => Ok(Parameters { url, plain: true, tls: None }),
        (None | Some("prefer" | "allow"), None) => Ok(Parameters { url, plain: false, tls: None }),
        (Some("verify-full"), Some(ca_file)) => {
            let tls = PostgresTls { ca_file, certificate_file: certificate, key_file: key, server_name: None };
            Ok(Parameters { url, plain: false, tls: Some(tls) })
        }
        (Some("verify-full"), None) => bail!("sslmode=verify-full needs sslrootcert=, a file of certificates"),
        (mode, _) => bail!("sslmode={} is not offered: verify-full or disable", mode.unwrap_or("(none)")),
    }
}

/// The password that the file has for the database: the first line whose fields are equal or `*`, as for libpq.
fn password_of(config: &Config, path: &Path) -> Result<Option<String>> {
    use std::os::unix::fs::PermissionsExt;

    // Like libpq, which goes on without it.
    let Ok(meta) = fs::metadata(path) else { return Ok(None) };
    ensure!(
        meta.permissions().mode() & 0o077 == 0,
        "the password file {} may be read by others: make it 0600",
        path.display()
    );
    let text = fs::read_to_string(path).with_context(|| format!("the password file {}", path.display()))?;
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(folder)) => folder.display().to_string(),
        None => config.get_hostaddrs().first().map_or_else(String::new, ToString::to_string),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let user = config.get_user().unwrap_or_default();
    let wanted = [&*host, &*port, config.get_dbname().unwrap_or(user), user];
    Ok(text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let (password, names) = fields.split_last().filter(|(_, names)| names.len() == wanted.len())?;
        let fits = names.iter().zip(wanted).all(|(name, wanted)| name == "*" || name == wanted);
        fits.then(|| password.clone())
    }))
}

/// The fields of a line; a backslash makes the next character part of a field.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut characters) = (vec![String::new()], line.chars());
    while let Some(character) = characters.next() {
        let taken = match character {
            ':' => {
                fields.push(String::new());
                continue;
            }
            '\\' => characters.next(),
            other => Some(other),
        };
        if let Some(last) = fields.last_mut() {
            last.extend(taken);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn parameters_for_tls_are_libpqs() {
        let plain = "postgresql://u@h:1/d?application_name=x%20y";
        let untouched = Parameters { url: plain.to_owned(), plain: false, tls: None };
        assert_eq!(without_tls(plain).unwrap(), untouched, "as it was: libpq takes a plus for a plus");
        let verified = without_tls("postgresql://u@h/d?sslmode=verify-full&sslrootcert=%2Fca").unwrap();
        assert_eq!((&*verified.url, verified.tls.unwrap().ca_file.to_str()), ("postgresql://u@h/d", Some("/ca")));
        assert!(without_tls("postgresql://u@h/d?sslmode=disable").unwrap().plain);
        for unsafe_ in
            ["sslmode=verify-full", "sslmode=require&sslrootcert=/ca", "sslmode=verify-ca", "sslrootcert=/ca"]
        {
            assert!(without_tls(&format!("postgresql://u@h/d?{unsafe_}")).is_err(), "{unsafe_}");
        }
    }

    #[test]
    fn other_machines_are_not_connected_to_in_clear() {
        for here in
            ["postgresql://u@127.0.0.1/d", "postgresql://u@localhost/d?sslmode=prefer", "postgresql:///d?host=/run"]
        {
            here.parse::<DatabaseUrl>().unwrap().at("127.0.0.1", 6432).unwrap();
        }
        for elsewhere in [
            "198.51.100.1/d",
            "198.51.100.1/d?sslmode=prefer",
            "unknown.invalid/d?sslmode=allow",
            "127.0.0.1,198.51.100.1/d",
        ] {
            let refused = format!("postgresql://u@{elsewhere}").parse::<DatabaseUrl>().err().unwrap();
            assert!(refused.to_string().contains("sslmode=verify-full"), "{elsewhere}: {refused:#}");
        }
        let here: DatabaseUrl = "postgresql://u@127.0.0.1/d".parse().unwrap();
        assert!(here.at("198.51.100.1", 5432).is_err(), "a node that PostgreSQL names");
        let plain: DatabaseUrl = "postgresql://u@198.51.100.1/d?sslmode=disable".parse().unwrap();
        plain.at("198.51.100.2", 5432).unwrap();
    }

    #[test]
    fn a_password_comes_from_the_first_line_that_fits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgpass");
        let text = "# a:1:d:u:comment\nh:2:*:*:other\n*:*:*:a\\:b:col\\:on\\\\\nh:1:d:u:mine\n*:*:*:*:last\nbad\n";
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let of = |url: &str| password_of(&url.parse().unwrap(), &path).unwrap();
        assert_eq!(of("postgresql://u@h:1/d").as_deref(), Some("mine"));
        assert_eq!(of("postgresql://u@h:2/d").as_deref(), Some("other"));
        assert_eq!(of("postgresql://a%3Ab@x/d").as_deref(), Some("col:on\\"));
        assert_eq!(of("postgresql://u@elsewhere/d").as_deref(), Some("last"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(password_of(&"postgresql://u@h/d".parse().unwrap(), &path).is_err());
        assert_eq!(password_of(&"postgresql://u@h/d".parse().unwrap(), &folder.path().join("no")).unwrap(), None);
    }
}
