//! The collector that spans go to, by OpenTelemetry's variables. Spans tell who asked for what and when, so they leave this
//! machine over TLS, unless `OTEL_EXPORTER_OTLP_INSECURE=true` says otherwise.

use std::{
    env, fs,
    net::{IpAddr, ToSocketAddrs},
};

use anyhow::{Context, Result, ensure};
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};

/// A variable of OpenTelemetry: the one about traces wins over the one about everything.
fn variable(name: &str) -> Option<String> {
    let of = |prefix: &str| env::var(format!("{prefix}_{name}")).ok().filter(|value| !value.is_empty());
    of("OTEL_EXPORTER_OTLP_TRACES").or_else(|| of("OTEL_EXPORTER_OTLP"))
}

/// The endpoint that the environment names.
pub fn endpoint() -> Option<String> {
    variable("ENDPOINT")
}

/// How to verify the collector; `None` for one without TLS.
///
/// # Errors
/// The collector is another machine and has no TLS, or a file is missing.
pub fn tls() -> Result<Option<ClientTlsConfig>> {
    tls_of(variable)
}

fn tls_of(variable: impl Fn(&str) -> Option<String>) -> Result<Option<ClientTlsConfig>> {
    let Some(endpoint) = variable("ENDPOINT") else { return Ok(None) };
    if !endpoint.starts_with("https://") {
        let is_allowed = variable("INSECURE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        ensure!(
            is_allowed || is_here(&endpoint),
            "the collector of spans {endpoint} is another machine: use https://, or set OTEL_EXPORTER_OTLP_INSECURE=true \
             to do without TLS"
        );
        return Ok(None);
    }
    let read = |name: &str| -> Result<Option<Vec<u8>>> {
        let Some(path) = variable(name) else { return Ok(None) };
        fs::read(&path).with_context(|| format!("OTEL_EXPORTER_OTLP_{name}={path}")).map(Some)
    };
    let authority = read("CERTIFICATE")?;
    let authority =
        authority.context("the collector's endpoint is https: OTEL_EXPORTER_OTLP_CERTIFICATE has to name a file")?;
    let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
    if let (Some(certificate), Some(key)) = (read("CLIENT_CERTIFICATE")?, read("CLIENT_KEY")?) {
        config = config.identity(Identity::from_pem(certificate, key));
    }
    Ok(Some(config))
}

fn is_here(endpoint: &str) -> bool {
    let Ok(uri) = endpoint.parse::<http::Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => (host, 0).to_socket_addrs().is_ok_and(|mut found| found.all(|address| address.ip().is_loopback())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_here() {
        for here in ["http://127.0.0.1:4317", "http://localhost:4317", "http://[::1]:4317"] {
            assert!(is_here(here), "{here}");
        }
        for elsewhere in
            ["http://10.0.0.1:4317", "http://collector.invalid:4317", "nonsense", "http://127.0.0.1.evil.invalid"]
        {
            assert!(!is_here(elsewhere), "{elsewhere}");
        }
    }
    /// Whether the spans go there with TLS, or why they do not go.
    fn is_verified(given: &[(&str, &str)]) -> Result<bool> {
        tls_of(|name| given.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned()))
            .map(|tls| tls.is_some())
    }

    #[test]
    fn spans_leave_this_machine_with_tls_only() {
        let elsewhere = ("ENDPOINT", "http://198.51.100.1:4317");
        for refused in [&[elsewhere][..], &[elsewhere, ("INSECURE", "false")], &[elsewhere, ("INSECURE", "1")]] {
            let why = is_verified(refused).unwrap_err().to_string();
            assert!(why.contains("is another machine"), "{refused:?}: {why}");
        }
        for plain in [&[][..], &[("ENDPOINT", "http://127.0.0.1:4317")], &[elsewhere, ("INSECURE", "TRUE")]] {
            assert!(!is_verified(plain).unwrap(), "{plain:?}");
        }
    }

    #[test]
    fn a_collector_with_tls_is_verified() {
        let verified = ("ENDPOINT", "https://198.51.100.1:4317");
        // Not even by a setting that is about plain collectors.
        for refused in [&[verified][..], &[verified, ("INSECURE", "true")]] {
            let why = is_verified(refused).unwrap_err().to_string();
            assert!(why.contains("OTEL_EXPORTER_OTLP_CERTIFICATE"), "{refused:?}: {why}");
        }
        let missing = is_verified(&[verified, ("CERTIFICATE", "/nowhere/ca.crt")]).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/ca.crt"), "{missing}");
        // Any file of this crate: it is parsed when the connection is made.
        assert!(is_verified(&[verified, ("CERTIFICATE", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))]).unwrap());
    }
}
