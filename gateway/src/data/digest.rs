//! Digests of an object's bytes, compared with those that the client announced: Content-MD5 and `x-amz-checksum-*`, in
//! headers or in a trailer, which is known only after the body has been read.

use base64::{Engine, engine::general_purpose::STANDARD};
use md5::{Digest, Md5};
use s3s::{
    TrailingHeaders,
    checksum::ChecksumHasher,
    crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256},
    dto::Checksum,
};

/// An announced digest that fails, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// It differs from the bytes' digest.
    Wrong(&'static str),
    /// It is not base64 of the right length, or the trailer lacks it.
    Malformed(&'static str),
}

#[derive(Clone, Debug, Default)]
pub struct Checksums {
    /// MD5, hexadecimal: the etag.
    pub md5: String,
    /// Those that the client requested, base64.
    pub others: Checksum,
}

#[derive(Default)]
pub struct Expected {
    pub md5: Option<String>,
    /// `x-amz-checksum-*`, by the name after the prefix (`crc32`, …); `None` if the trailer has the value.
    pub others: Vec<(&'static str, Option<String>)>,
    pub trailer: Option<TrailingHeaders>,
}

/// The checksum algorithms that S3 has, as in the header's name.
pub const ALGORITHMS: [&str; 5] = ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"];

pub struct Hasher {
    md5: Md5,
    others: ChecksumHasher,
}

impl Hasher {
    pub fn update(&mut self, bytes: &[u8]) {
        self.md5.update(bytes);
        self.others.update(bytes);
    }
}

fn value_of<'a>(sums: &'a Checksum, algorithm: &str) -> Option<&'a str> {
    match algorithm {
        "crc32" => sums.checksum_crc32.as_deref(),
        "crc32c" => sums.checksum_crc32c.as_deref(),
        "crc64nvme" => sums.checksum_crc64nvme.as_deref(),
        "sha1" => sums.checksum_sha1.as_deref(),
        _ => sums.checksum_sha256.as_deref(),
    }
}

/// Compares two digests in base64.
fn compare(name: &'static str, announced: &str, computed: &str) -> Result<(), Mismatch> {
    let length = |digest: &str| STANDARD.decode(digest).map(|bytes| bytes.len()).ok();
    if length(announced) != length(computed) {
        return Err(Mismatch::Malformed(name));
    }
    if announced == computed { Ok(()) } else { Err(Mismatch::Wrong(name)) }
}

impl Expected {
    pub(super) fn hasher(&self) -> Hasher {
        let wants = |name: &str| self.others.iter().any(|(algorithm, _)| *algorithm == name);
        let others = ChecksumHasher {
            crc32: wants("crc32").then(Crc32::new),
            crc32c: wants("crc32c").then(Crc32c::new),
            crc64nvme: wants("crc64nvme").then(Crc64Nvme::new),
            sha1: wants("sha1").then(Sha1::new),
            sha256: wants("sha256").then(Sha256::new),
        };
        Hasher { md5: Md5::new(), others }
    }

    pub(super) fn check(&self, hasher: Hasher) -> Result<Checksums, Mismatch> {
        let digest = hasher.md5.finalize();
        if let Some(announced) = &self.md5 {
            compare("Content-MD5", announced, &STANDARD.encode(digest))?;
        }
        let others = hasher.others.finalize();
        for (algorithm, announced) in &self.others {
            let announced = announced.clone().or_else(|| self.in_trailer(algorithm));
            let announced = announced.ok_or(Mismatch::Malformed(algorithm))?;
            compare(algorithm, &announced, value_of(&others, algorithm).unwrap_or_default())?;
        }
        Ok(Checksums { md5: hex::encode(digest), others })
    }

    fn in_trailer(&self, algorithm: &str) -> Option<String> {
        let name = format!("x-amz-checksum-{algorithm}");
        let read = |headers: &http::HeaderMap| headers.get(&name)?.to_str().ok().map(|v| v.trim().to_owned());
        self.trailer.as_ref()?.read(read)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expected: &Expected, bytes: &[u8]) -> Result<Checksums, Mismatch> {
        let mut hasher = expected.hasher();
        hasher.update(bytes);
        expected.check(hasher)
    }

    #[test]
    fn announced_digests_are_compared() {
        assert_eq!(check(&Expected::default(), b"").unwrap().md5, "d41d8cd98f00b204e9800998ecf8427e");
        let md5 = |text: &str| Expected { md5: Some(text.to_owned()), ..Expected::default() };
        assert!(check(&md5("1B2M2Y8AsgTpgAmY7PhCfg=="), b"").is_ok());
        assert_eq!(check(&md5("1B2M2Y8AsgTpgAmY7PhCfg=="), b"x").unwrap_err(), Mismatch::Wrong("Content-MD5"));
        assert_eq!(check(&md5("1B2M"), b"").unwrap_err(), Mismatch::Malformed("Content-MD5"));
        let crc = |text: &str| Expected { others: vec![("crc32", Some(text.to_owned()))], ..Expected::default() };
        assert!(check(&crc("y/Q5Jg=="), b"123456789").is_ok());
        assert_eq!(check(&crc("y/Q5Jg=="), b"12345678").unwrap_err(), Mismatch::Wrong("crc32"));
        assert_eq!(check(&crc("!"), b"").unwrap_err(), Mismatch::Malformed("crc32"));
        let absent = Expected { others: vec![("sha1", None)], ..Expected::default() };
        assert_eq!(check(&absent, b"").unwrap_err(), Mismatch::Malformed("sha1"));
    }
}
