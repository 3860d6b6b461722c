//! The names under which this service answers. S3 puts the bucket into the host's name (`bucket.s3.example`, virtual-hosted
//! style) or into the path (path style). Which of the two a request means depends on the host alone. So a host that
//! nobody configured is refused: the first component of a key would be taken for a bucket.

use std::{collections::HashSet, net::IpAddr};

use anyhow::ensure;
use axum::http::{HeaderMap, Uri, header};
use mantle_types::{Error, ErrorCode, Result};

const LOCALHOST: &str = "localhost";

/// How a request names its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Style {
    Path,
    /// The bucket is in the host's name.
    Virtual(String),
}

pub struct Hosts {
    domains: Vec<String>,
    path_style: HashSet<String>,
}

impl Hosts {
    /// `domains`: buckets are below these, and path style is spoken at them. `others`: path style only.
    pub fn new(domains: &[String], others: &[String]) -> anyhow::Result<Self> {
        let names = |given: &[String]| {
            let names = given.iter().map(|name| {
                ensure!(is_name(name), "`{name}` is not the name of a host, without a port");
                Ok(canonical(name).to_owned())
            });
            names.collect::<anyhow::Result<Vec<_>>>()
        };
        let domains = names(domains)?;
        let mut path_style: HashSet<String> = names(others)?.into_iter().chain(own_names()).collect();
        path_style.extend(domains.iter().cloned());
        path_style.insert(LOCALHOST.to_owned());
        Ok(Self { domains, path_style })
    }

    /// The style of a request.
    ///
    /// # Errors
    /// `invalid_argument` for a host that is not one of this service's, or that is given twice.
    pub fn style_of(&self, uri: &Uri, headers: &HeaderMap) -> Result<Style> {
        let bad = |why: String| Error::new(ErrorCode::InvalidArgument, why);
        let mut given = headers.get_all(header::HOST).iter();
        let host = match (given.next(), given.next(), uri.authority()) {
            (Some(host), None, authority) => {
                let host = host.to_str().map_err(|_| bad("the Host header is not text".into()))?;
                if authority.is_some_and(|authority| !authority.as_str().eq_ignore_ascii_case(host)) {
                    return Err(bad("the Host header and the request's target name two hosts".into()));
                }
                host
            }
            (Some(_), Some(_), _) => return Err(bad("the request has two Host headers".into())),
            (None, _, Some(authority)) => authority.as_str(),
            (None, _, None) => return Err(bad("the request names no host".into())),
        };
        self.style(host).ok_or_else(|| {
            bad(format!("the host `{host}` is not one of this service's names (`domains`, `path_style_hosts`)"))
        })
    }

    /// `None` for an unknown host.
    pub fn style(&self, host: &str) -> Option<Style> {
        let name = without_port(host)?;
        if is_address(name) {
            return Some(Style::Path);
        }
        let name = canonical(name);
        if self.path_style.contains(&name) {
            return Some(Style::Path);
        }
        let bucket = self.domains.iter().find_map(|domain| name.strip_suffix(domain.as_str())?.strip_suffix('.'));
        bucket.filter(|bucket| !bucket.is_empty()).map(|bucket| Style::Virtual(bucket.to_owned()))
    }
}

/// In lower case, without the dot that ends a full name.
fn canonical(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !is_address(name)
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn is_address(name: &str) -> bool {
    let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    inner.parse::<IpAddr>().is_ok()
}

/// `None` for a port that is none.
fn without_port(host: &str) -> Option<&str> {
    match host.rsplit_once(':') {
        // The colons of an IPv6 address are in brackets.
        Some((name, port)) if !port.ends_with(']') => port.parse::<u16>().ok().map(|_| name),
        _ => Some(host),
    }
}

/// This machine's name, whole and without its domain.
fn own_names() -> Vec<String> {
    let system = rustix::system::uname();
    let name = canonical(&system.nodename().to_string_lossy());
    let short = name.split('.').next().unwrap_or_default().to_owned();
    [name, short].into_iter().filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Hosts {
        Hosts::new(&["s3.example".into(), "Other.Example.".into()], &["balancer".into()]).unwrap()
    }

    #[test]
    fn addresses_and_own_names_are_path_style() {
        let own = own_names();
        for host in ["127.0.0.1", "127.0.0.1:9400", "[::1]", "[::1]:9400", "localhost", "LOCALHOST:1", "balancer:80"] {
            assert_eq!(hosts().style(host), Some(Style::Path), "{host}");
        }
        for host in own.iter().map(String::as_str).chain(["s3.example", "s3.example.:443", "other.example"]) {
            assert_eq!(hosts().style(host), Some(Style::Path), "{host}");
        }
    }

    #[test]
    fn buckets_are_below_domains() {
        for (host, bucket) in [
            ("photos.s3.example", "photos"),
            ("Photos.S3.example:9400", "photos"),
            ("a.b.s3.example", "a.b"),
            ("photos.other.example.", "photos"),
        ] {
            assert_eq!(hosts().style(host), Some(Style::Virtual(bucket.to_owned())), "{host}");
        }
    }

    #[test]
    fn other_hosts_are_refused() {
        for host in
            ["", "evil.example", "s3.example.evil", "xs3.example", ".s3.example", "localhost:x", "photos.localhost"]
        {
            assert_eq!(hosts().style(host), None, "{host}");
        }
        let style = |target: &str, given: &[&str]| {
            let headers = given.iter().map(|host| (header::HOST, host.parse().unwrap())).collect();
            hosts().style_of(&target.parse().unwrap(), &headers).map_err(|e| e.code())
        };
        assert_eq!(style("/b", &["localhost"]), Ok(Style::Path));
        assert_eq!(style("http://localhost/b", &[]), Ok(Style::Path));
        assert_eq!(style("/b", &[]), Err(ErrorCode::InvalidArgument));
        assert_eq!(style("http://localhost/b", &["s3.example"]), Err(ErrorCode::InvalidArgument));
        let mut twice = HeaderMap::new();
        twice.append(header::HOST, "localhost".parse().unwrap());
        twice.append(header::HOST, "localhost".parse().unwrap());
        assert!(hosts().style_of(&Uri::from_static("/b"), &twice).is_err());
    }

    #[test]
    fn names_with_ports_are_no_domains() {
        for name in ["", "s3.example:80", "127.0.0.1", "a/b"] {
            assert!(Hosts::new(&[name.into()], &[]).is_err(), "{name}");
        }
    }
}
