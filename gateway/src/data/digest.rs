//! Digests of bytes, compared with those that the client announced: Content-MD5 and `x-amz-checksum-*`, in headers or in
//! a trailer, which is known only after the body has been read. The digests of an object in parts follow from those of its
//! parts.

use std::sync::{Arc, OnceLock};

use base64::{Engine, engine::general_purpose::STANDARD};
use crc_fast::{CrcAlgorithm, checksum_combine};
use http::HeaderMap;
use md5::{Digest, Md5};
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme};
use serde_json::{Map, Value};
use xxhash_rust::{xxh3::Xxh3, xxh64::Xxh64};

/// The checksums that S3 has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
    Sha512,
    Md5,
    Xxhash64,
    Xxhash3,
    Xxhash128,
}

impl Algorithm {
    pub const ALL: [Self; 10] = [
        Self::Crc32,
        Self::Crc32c,
        Self::Crc64Nvme,
        Self::Sha1,
        Self::Sha256,
        Self::Sha512,
        Self::Md5,
        Self::Xxhash64,
        Self::Xxhash3,
        Self::Xxhash128,
    ];

    /// As in `x-amz-checksum-…`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "crc32",
            Self::Crc32c => "crc32c",
            Self::Crc64Nvme => "crc64nvme",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
            Self::Md5 => "md5",
            Self::Xxhash64 => "xxhash64",
            Self::Xxhash3 => "xxhash3",
            Self::Xxhash128 => "xxhash128",
        }
    }

    /// The algorithm of a name in any case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }

    /// How the checksums of parts make that of the object, if the client does not say.
    pub fn default_kind(self) -> ChecksumKind {
        match self {
            Self::Crc64Nvme => ChecksumKind::FullObject,
            _ => ChecksumKind::Composite,
        }
    }

    pub fn offers(self, kind: ChecksumKind) -> bool {
        match (self, kind) {
            (Self::Crc64Nvme, kind) => kind == ChecksumKind::FullObject,
            (Self::Crc32 | Self::Crc32c, _) => true,
            (_, kind) => kind == ChecksumKind::Composite,
        }
    }

    /// Whether a text is a digest of this algorithm, right or wrong: base64 of its length.
    pub fn is_digest(self, text: &str) -> bool {
        STANDARD.decode(text).is_ok_and(|bytes| bytes.len() == self.hasher().finish().len())
    }

    /// The same of the checksum of an object in parts, which may say their number.
    pub fn is_digest_of_parts(self, text: &str) -> bool {
        let (digest, count) = text.split_once('-').map_or((text, None), |(digest, count)| (digest, Some(count)));
        self.is_digest(digest) && count.is_none_or(|count| count.parse::<u32>().is_ok())
    }

    fn hasher(self) -> Hasher {
        match self {
            Self::Crc32 => Hasher::Crc32(Crc32::new()),
            Self::Crc32c => Hasher::Crc32c(Crc32c::new()),
            Self::Crc64Nvme => Hasher::Crc64Nvme(Crc64Nvme::new()),
            Self::Sha1 => Hasher::Sha1(s3s::crypto::Sha1::new()),
            Self::Sha256 => Hasher::Sha256(sha2::Sha256::new()),
            Self::Sha512 => Hasher::Sha512(sha2::Sha512::new()),
            Self::Md5 => Hasher::Md5(Md5::new()),
            Self::Xxhash64 => Hasher::Xxhash64(Xxh64::new(0)),
            Self::Xxhash3 => Hasher::Xxhash3(Box::default()),
            Self::Xxhash128 => Hasher::Xxhash128(Box::default()),
        }
    }
}

/// What the checksum of an object in parts is computed of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumKind {
    /// All bytes of the object.
    FullObject,
    /// The checksums of its parts; the text ends in their number.
    Composite,
}

impl ChecksumKind {
    /// As in `x-amz-checksum-type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::FullObject => "FULL_OBJECT",
            Self::Composite => "COMPOSITE",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        [Self::FullObject, Self::Composite].into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    /// The kind of a checksum that is kept: base64 has no hyphen.
    pub fn of(value: &str) -> Self {
        if value.contains('-') { Self::Composite } else { Self::FullObject }
    }
}

/// The etag of an object in parts: the MD5 of the parts' MD5s, and their number. `None` if one is not hexadecimal.
pub fn etag_of_parts(md5s: &[&str]) -> Option<String> {
    let mut whole = Md5::new();
    for md5 in md5s {
        whole.update(hex::decode(md5).ok()?);
    }
    Some(format!("{}-{}", hex::encode(whole.finalize()), md5s.len()))
}

/// The checksum of an object in parts, from those of its parts (base64) and their sizes. `None` if one is malformed, or
/// the algorithm has no such kind.
pub fn checksum_of_parts(algorithm: Algorithm, kind: ChecksumKind, parts: &[(&str, u64)]) -> Option<String> {
    if !algorithm.offers(kind) {
        return None;
    }
    let decoded = parts.iter().map(|(value, size)| Some((STANDARD.decode(value).ok()?, *size)));
    let decoded: Vec<(Vec<u8>, u64)> = decoded.collect::<Option<_>>()?;
    if kind == ChecksumKind::Composite {
        let mut hasher = algorithm.hasher();
        decoded.iter().for_each(|(value, _)| hasher.update(value));
        return Some(format!("{}-{}", STANDARD.encode(hasher.finish()), parts.len()));
    }
    let (polynomial, width) = match algorithm {
        Algorithm::Crc32 => (CrcAlgorithm::Crc32IsoHdlc, 4),
        Algorithm::Crc32c => (CrcAlgorithm::Crc32Iscsi, 4),
        _ => (CrcAlgorithm::Crc64Nvme, 8),
    };
    let mut whole = None;
    for (value, size) in decoded {
        let part =
            (value.len() == width).then(|| value.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))?;
        whole = Some(whole.map_or(part, |whole| checksum_combine(polynomial, whole, part, size)));
    }
    Some(STANDARD.encode(&whole?.to_be_bytes()[8 - width..]))
}

enum Hasher {
    Crc32(Crc32),
    Crc32c(Crc32c),
    Crc64Nvme(Crc64Nvme),
    Sha1(s3s::crypto::Sha1),
    Sha256(sha2::Sha256),
    Sha512(sha2::Sha512),
    Md5(Md5),
    Xxhash64(Xxh64),
    Xxhash3(Box<Xxh3>),
    Xxhash128(Box<Xxh3>),
}

impl Hasher {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc32(hasher) => hasher.update(bytes),
            Self::Crc32c(hasher) => hasher.update(bytes),
            Self::Crc64Nvme(hasher) => hasher.update(bytes),
            Self::Sha1(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
            Self::Md5(hasher) => hasher.update(bytes),
            Self::Xxhash64(hasher) => hasher.update(bytes),
            Self::Xxhash3(hasher) | Self::Xxhash128(hasher) => hasher.update(bytes),
        }
    }

    /// The digest, numbers with their highest byte first.
    fn finish(self) -> Vec<u8> {
        match self {
            Self::Crc32(hasher) => hasher.finalize().as_ref().to_vec(),
            Self::Crc32c(hasher) => hasher.finalize().as_ref().to_vec(),
            Self::Crc64Nvme(hasher) => hasher.finalize().as_ref().to_vec(),
            Self::Sha1(hasher) => hasher.finalize().as_ref().to_vec(),
            Self::Sha256(hasher) => hasher.finalize().to_vec(),
            Self::Sha512(hasher) => hasher.finalize().to_vec(),
            Self::Md5(hasher) => hasher.finalize().to_vec(),
            Self::Xxhash64(hasher) => hasher.digest().to_be_bytes().to_vec(),
            Self::Xxhash3(hasher) => hasher.digest().to_be_bytes().to_vec(),
            Self::Xxhash128(hasher) => hasher.digest128().to_be_bytes().to_vec(),
        }
    }
}

/// An announced digest that fails, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// It differs from the bytes' digest.
    Wrong(&'static str),
    /// It is not base64 of the right length.
    Malformed(&'static str),
    /// The same in the trailer, or the trailer lacks it.
    MalformedTrailer(&'static str),
}

/// The beginning of the name, in an object's metadata, under which its checksum is kept, before the algorithm.
pub const KEPT_AS: &str = ":checksum-";

/// Name, in an object's metadata, that says: the checksums of its parts are not of its checksum's algorithm.
pub const OWN_CHECKSUM: &str = ":own-checksum";

pub fn has_own_checksum(metadata: Option<&Value>) -> bool {
    metadata.is_some_and(|metadata| metadata.get(OWN_CHECKSUM).is_some())
}

/// The checksum of bytes that an object keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum {
    pub algorithm: Algorithm,
    /// Base64.
    pub value: String,
}

impl Checksum {
    /// The checksum in an object's metadata; older objects have none.
    pub fn kept_in(metadata: Option<&Value>) -> Option<Self> {
        metadata?.as_object()?.iter().find_map(|(name, value)| {
            let algorithm = Algorithm::named(name.strip_prefix(KEPT_AS)?)?;
            Some(Self { algorithm, value: value.as_str()?.to_owned() })
        })
    }

    /// An object's metadata with its checksum.
    pub fn kept_with(&self, metadata: Option<Value>) -> Value {
        let mut map = match metadata {
            Some(Value::Object(map)) => map,
            _ => Map::new(),
        };
        map.insert(format!("{KEPT_AS}{}", self.algorithm.name()), Value::String(self.value.clone()));
        Value::Object(map)
    }
}

#[derive(Clone, Debug)]
pub struct Checksums {
    /// MD5, hexadecimal: the etag.
    pub md5: String,
    /// The one that is kept: the client's, or S3's default.
    pub checksum: Checksum,
}

/// The headers that follow a body, once it has been read.
pub type Trailer = Arc<OnceLock<HeaderMap>>;

/// The digests that a client has announced for a body.
#[derive(Default)]
pub struct Expected {
    /// How many bytes there are.
    pub size: Option<u64>,
    pub md5: Option<String>,
    /// The checksum in a header, and that in the trailer, whose value is known at the end.
    pub header: Option<(Algorithm, String)>,
    pub in_trailer: Option<Algorithm>,
    pub trailer: Option<Trailer>,
    /// The checksum to keep, if it is not the announced one.
    pub kept: Option<Algorithm>,
}

/// Computes what [`Expected`] demands.
pub struct Hashers {
    md5: Md5,
    algorithm: Algorithm,
    checksum: Hasher,
    kept: Option<(Algorithm, Hasher)>,
}

impl Hashers {
    pub fn update(&mut self, bytes: &[u8]) {
        self.md5.update(bytes);
        self.checksum.update(bytes);
        if let Some((_, kept)) = &mut self.kept {
            kept.update(bytes);
        }
    }
}

/// Compares a digest in base64 with one that was computed.
fn compare(name: &'static str, announced: &str, computed: &[u8]) -> Result<(), Mismatch> {
    match STANDARD.decode(announced) {
        Ok(bytes) if bytes == computed => Ok(()),
        Ok(bytes) if bytes.len() == computed.len() => Err(Mismatch::Wrong(name)),
        _ => Err(Mismatch::Malformed(name)),
    }
}

impl Expected {
    /// The algorithm of the announced checksum.
    pub fn algorithm(&self) -> Option<Algorithm> {
        self.header.as_ref().map(|(algorithm, _)| *algorithm).or(self.in_trailer)
    }

    pub fn hashers(&self) -> Hashers {
        let algorithm = self.algorithm().or(self.kept).unwrap_or(Algorithm::Crc64Nvme);
        let kept = self.kept.filter(|kept| *kept != algorithm).map(|kept| (kept, kept.hasher()));
        Hashers { md5: Md5::new(), algorithm, checksum: algorithm.hasher(), kept }
    }

    pub fn check(&self, hashers: Hashers) -> Result<Checksums, Mismatch> {
        let Hashers { md5, algorithm, checksum, kept } = hashers;
        let (md5, computed) = (md5.finalize(), checksum.finish());
        if let Some(announced) = &self.md5 {
            compare("Content-MD5", announced, &md5)?;
        }
        if let Some((_, announced)) = &self.header {
            compare(algorithm.name(), announced, &computed)?;
        }
        if let Some(in_trailer) = self.in_trailer {
            let name = in_trailer.name();
            let announced = self.read_trailer(in_trailer).ok_or(Mismatch::MalformedTrailer(name))?;
            compare(name, &announced, &computed).map_err(|mismatch| match mismatch {
                Mismatch::Malformed(name) => Mismatch::MalformedTrailer(name),
                other => other,
            })?;
        }
        let (algorithm, value) = match kept {
            Some((kept, hasher)) => (kept, hasher.finish()),
            None => (algorithm, computed),
        };
        Ok(Checksums { md5: hex::encode(md5), checksum: Checksum { algorithm, value: STANDARD.encode(value) } })
    }

    fn read_trailer(&self, algorithm: Algorithm) -> Option<String> {
        let name = format!("x-amz-checksum-{}", algorithm.name());
        Some(self.trailer.as_ref()?.get()?.get(&name)?.to_str().ok()?.trim().to_owned())
    }

    /// Whether the client has announced any digest.
    pub fn is_any(&self) -> bool {
        self.md5.is_some() || self.header.is_some() || self.in_trailer.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expected: &Expected, bytes: &[u8]) -> Result<Checksums, Mismatch> {
        let mut hashers = expected.hashers();
        hashers.update(bytes);
        expected.check(hashers)
    }

    /// Check values of the algorithms' specifications, for `123456789` or no bytes.
    #[test]
    fn each_algorithm_computes_its_published_value() {
        for (name, bytes, hexadecimal) in [
            ("crc32", "123456789", "cbf43926"),
            ("crc32c", "123456789", "e3069283"),
            ("crc64nvme", "123456789", "ae8b14860a799888"),
            ("sha1", "", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
            ("sha256", "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("md5", "", "d41d8cd98f00b204e9800998ecf8427e"),
            ("xxhash64", "", "ef46db3751d8e999"),
            ("xxhash3", "", "2d06800538d394c2"),
            ("xxhash128", "", "99aa06d3014798d86001c324468d497f"),
        ] {
            let algorithm = Algorithm::named(&name.to_ascii_uppercase()).unwrap();
            let value = STANDARD.encode(hex::decode(hexadecimal).unwrap());
            let expected = Expected { header: Some((algorithm, value.clone())), ..Expected::default() };
            assert_eq!(check(&expected, bytes.as_bytes()).unwrap().checksum, Checksum { algorithm, value }, "{name}");
            assert_eq!(check(&expected, b"other").unwrap_err(), Mismatch::Wrong(algorithm.name()));
        }
        assert_eq!(Algorithm::named("crc16"), None);
        for (text, is_digest, is_of_parts) in [
            ("AAAAAA==", true, true),
            ("AAAAAA==-3", false, true),
            ("AAAAAA==-3-4", false, false),
            ("AAAAAA==-x", false, false),
            ("AAAA", false, false),
            ("crc", false, false),
            ("", false, false),
        ] {
            let of = Algorithm::Crc32;
            assert_eq!((of.is_digest(text), of.is_digest_of_parts(text)), (is_digest, is_of_parts), "{text}");
        }
    }

    /// The parts' checksums make the one that the bytes have as a whole.
    #[test]
    fn checksums_of_parts_are_combined() {
        let bytes: Vec<u8> = (0..1000u32).map(|n| (n * 7 % 251) as u8).collect();
        let of = |algorithm, bytes: &[u8]| {
            let expected = Expected { kept: Some(algorithm), ..Expected::default() };
            check(&expected, bytes).unwrap().checksum.value
        };
        for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme] {
            let parts = [&bytes[..300], &bytes[300..300], &bytes[300..301], &bytes[301..]];
            let values: Vec<_> = parts.iter().map(|part| (of(algorithm, part), part.len() as u64)).collect();
            let values: Vec<_> = values.iter().map(|(value, size)| (value.as_str(), *size)).collect();
            let whole = checksum_of_parts(algorithm, ChecksumKind::FullObject, &values);
            assert_eq!(whole, Some(of(algorithm, &bytes)), "{algorithm:?}");
        }
        let parts = [(of(Algorithm::Sha256, b"a"), 1), (of(Algorithm::Sha256, b"b"), 1)];
        let parts: Vec<_> = parts.iter().map(|(value, size)| (value.as_str(), *size)).collect();
        let digests: Vec<u8> = parts.iter().flat_map(|(value, _)| STANDARD.decode(value).unwrap()).collect();
        let composite = checksum_of_parts(Algorithm::Sha256, ChecksumKind::Composite, &parts);
        assert_eq!(composite, Some(format!("{}-2", of(Algorithm::Sha256, &digests))));
        assert_eq!(ChecksumKind::of(&composite.unwrap()), ChecksumKind::Composite);
        assert_eq!(checksum_of_parts(Algorithm::Sha256, ChecksumKind::FullObject, &parts), None);
        assert_eq!(checksum_of_parts(Algorithm::Crc32, ChecksumKind::FullObject, &[("AAAA", 1)]), None);
        // As S3 computes it, for parts `a` and `b`.
        let md5s = ["0cc175b9c0f1b6a831c399e269772661", "92eb5ffee6ae2fec3ad71c777531578f"];
        assert_eq!(etag_of_parts(&md5s).unwrap(), "96e024ba2074fe77e8e965ba43a704be-2");
        assert_eq!(etag_of_parts(&["x"]), None);
    }

    #[test]
    fn a_checksum_may_be_kept_beside_the_announced_one() {
        let header = Some((Algorithm::Crc32, "y/Q5Jg==".to_owned()));
        let expected = Expected { header, kept: Some(Algorithm::Crc64Nvme), ..Expected::default() };
        assert_eq!(check(&expected, b"123456789").unwrap().checksum.algorithm, Algorithm::Crc64Nvme);
        assert_eq!(check(&expected, b"other").unwrap_err(), Mismatch::Wrong("crc32"));
    }

    #[test]
    fn announced_digests_are_compared() {
        let plain = check(&Expected::default(), b"").unwrap();
        assert_eq!(
            (plain.md5.as_str(), plain.checksum.algorithm),
            ("d41d8cd98f00b204e9800998ecf8427e", Algorithm::Crc64Nvme)
        );
        let md5 = |text: &str| Expected { md5: Some(text.to_owned()), ..Expected::default() };
        assert!(check(&md5("1B2M2Y8AsgTpgAmY7PhCfg=="), b"").is_ok());
        assert_eq!(check(&md5("1B2M2Y8AsgTpgAmY7PhCfg=="), b"x").unwrap_err(), Mismatch::Wrong("Content-MD5"));
        assert_eq!(check(&md5("1B2M"), b"").unwrap_err(), Mismatch::Malformed("Content-MD5"));
        let crc = |text: &str| Expected { header: Some((Algorithm::Crc32, text.to_owned())), ..Expected::default() };
        assert_eq!(check(&crc("!"), b"").unwrap_err(), Mismatch::Malformed("crc32"));
        let absent = Expected { in_trailer: Some(Algorithm::Sha1), ..Expected::default() };
        assert_eq!(check(&absent, b"").unwrap_err(), Mismatch::MalformedTrailer("sha1"));
    }
}
