//! The digests that a request announces for its body.

use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::{S3Error, S3Response, dto, s3_error};

use super::errors::bad_request;
use crate::{
    data::{Algorithm, Checksum, ChecksumKind, Expected, Mismatch, Trailer},
    http::header_text,
};

const PREFIX: &str = "x-amz-checksum-";
const TYPE: HeaderName = HeaderName::from_static("x-amz-checksum-type");
const CONTENT_MD5: &str = "content-md5";
const SDK_ALGORITHM: &str = "x-amz-sdk-checksum-algorithm";
const TRAILER: &str = "x-amz-trailer";
const SEVERAL: &str = "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.";

/// What the headers announce.
///
/// # Errors
/// `InvalidRequest` for announcements that contradict each other, or that name an algorithm which S3 does not have.
pub(super) fn announced(headers: &HeaderMap, trailer: Option<Trailer>) -> Result<Expected, S3Error> {
    let invalid = |why: &'static str| bad_request("InvalidRequest", why);
    let mut in_headers = Algorithm::ALL.into_iter().filter_map(|algorithm| {
        let value = headers.get(format!("{PREFIX}{}", algorithm.name()))?;
        Some((algorithm, value.to_str().unwrap_or_default().trim().to_owned()))
    });
    let header = in_headers.next();
    if in_headers.next().is_some() {
        return Err(invalid(SEVERAL));
    }
    let in_trailer = match headers.get(TRAILER) {
        None => None,
        Some(names) => {
            let name = names.to_str().unwrap_or_default().trim().to_ascii_lowercase();
            let algorithm = name.strip_prefix(PREFIX).and_then(Algorithm::named);
            Some(algorithm.ok_or_else(|| invalid("The value specified in the x-amz-trailer header is not supported"))?)
        }
    };
    if let (Some((header, _)), Some(in_trailer)) = (&header, in_trailer)
        && *header != in_trailer
    {
        return Err(invalid(SEVERAL));
    }
    if let Some(named) = header_text(headers, SDK_ALGORITHM) {
        let used = header.as_ref().map(|(algorithm, _)| *algorithm).or(in_trailer);
        match (Algorithm::named(named.trim()), used) {
            (None, _) => return Err(invalid("Value for x-amz-sdk-checksum-algorithm header is invalid.")),
            (Some(_), None) => {
                return Err(invalid(
                    "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer headers were \
                     found.",
                ));
            }
            (Some(named), Some(used)) if named != used => {
                return Err(invalid("Value for x-amz-sdk-checksum-algorithm header is invalid."));
            }
            _ => {}
        }
    }
    let md5 = content_md5(headers);
    Ok(Expected { size: None, md5, header, in_trailer, trailer, kept: None })
}

/// An error if the headers announce a checksum, for the native API, which compares none.
pub(super) fn refuse_all(headers: &HeaderMap) -> Result<(), S3Error> {
    let of_checksum =
        |name: &&HeaderName| name.as_str().starts_with(PREFIX) || [TRAILER, SDK_ALGORITHM].contains(&name.as_str());
    match headers.keys().find(of_checksum) {
        Some(name) => {
            Err(bad_request("InvalidRequest", format!("the header `{name}` is S3's: no checksum is compared here")))
        }
        None => Ok(()),
    }
}

/// What the headers announce of the document of CompleteMultipartUpload: its checksum headers are the object's.
pub(super) fn of_document(headers: &HeaderMap, trailer: Option<Trailer>) -> Result<Expected, S3Error> {
    let of_object = |name: &HeaderName| name.as_str().starts_with(PREFIX) || name == SDK_ALGORITHM;
    let own = headers.iter().filter(|(name, _)| !of_object(name));
    announced(&own.map(|(name, value)| (name.clone(), value.clone())).collect(), trailer)
}

fn content_md5(headers: &HeaderMap) -> Option<String> {
    headers.get(CONTENT_MD5).map(|value| value.to_str().unwrap_or_default().trim().to_owned())
}

/// The checksum that CompleteMultipartUpload announces of its object.
///
/// # Errors
/// `InvalidRequest` for several.
pub(super) fn of_object(headers: &HeaderMap) -> Result<Option<(Algorithm, String)>, S3Error> {
    let mut of_object = HeaderMap::new();
    for (name, value) in headers.iter().filter(|(name, _)| name.as_str().starts_with(PREFIX)) {
        of_object.append(name.clone(), value.clone());
    }
    Ok(announced(&of_object, None)?.header)
}

/// The headers that tell a client the checksum of a whole object.
pub(super) fn headers(checksum: &Checksum) -> HeaderMap {
    let mut headers = header_of_part(checksum);
    headers.insert(TYPE, HeaderValue::from_static(ChecksumKind::of(&checksum.value).name()));
    headers
}

/// The header that tells a client the checksum of a part.
pub(super) fn header_of_part(checksum: &Checksum) -> HeaderMap {
    let name = HeaderName::try_from(format!("{PREFIX}{}", checksum.algorithm.name()));
    let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(&checksum.value)) else { return HeaderMap::new() };
    HeaderMap::from_iter([(name, value)])
}

/// The algorithm of a document's checksums, if `s3s` has no elements for it: they have the name of another one, until
/// [`rename`] gives them their own.
#[derive(Clone, Copy)]
pub(super) struct Misnamed(Algorithm);

/// An answer whose checksums are of this algorithm.
pub(super) fn answer<T>(output: T, algorithm: Option<Algorithm>) -> S3Response<T> {
    use Algorithm::{Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
    let mut answer = S3Response::new(output);
    match algorithm {
        None | Some(Crc32 | Crc32c | Crc64Nvme | Sha1 | Sha256) => {}
        Some(newer) => drop(answer.extensions.insert(Misnamed(newer))),
    }
    answer
}

/// A document with the names that its checksums should have. No text in it can be taken for an element.
pub(super) fn rename(document: &str, Misnamed(algorithm): Misnamed) -> String {
    document.replace("ChecksumCRC32>", &format!("Checksum{}>", algorithm.name().to_ascii_uppercase()))
}

/// Documents with elements that hold a checksum. Answer them by [`answer`], which names the elements.
pub(super) trait Elements {
    fn set(&mut self, algorithm: Algorithm, value: String);
}

macro_rules! elements {
    ($($dto:ty),*) => {
        $(impl Elements for $dto {
            fn set(&mut self, algorithm: Algorithm, value: String) {
                let place = match algorithm {
                    Algorithm::Crc32c => &mut self.checksum_crc32c,
                    Algorithm::Crc64Nvme => &mut self.checksum_crc64nvme,
                    Algorithm::Sha1 => &mut self.checksum_sha1,
                    Algorithm::Sha256 => &mut self.checksum_sha256,
                    _ => &mut self.checksum_crc32,
                };
                *place = Some(value);
            }
        })*
    };
}

elements!(dto::Checksum, dto::CopyObjectResult, dto::CopyPartResult, dto::ObjectPart, dto::Part);

/// The error of a digest that does not hold.
pub(super) fn failure(mismatch: Mismatch) -> S3Error {
    match mismatch {
        Mismatch::Wrong("Content-MD5") => {
            s3_error!(BadDigest, "The Content-MD5 you specified did not match what we received.")
        }
        Mismatch::Wrong(what) => {
            let what = what.to_uppercase();
            s3_error!(BadDigest, "The {what} you specified did not match the calculated checksum.")
        }
        Mismatch::Malformed("Content-MD5") => s3_error!(InvalidDigest, "The Content-MD5 you specified was invalid."),
        Mismatch::Malformed(what) => {
            bad_request("InvalidRequest", format!("Value for {PREFIX}{what} header is invalid."))
        }
        Mismatch::MalformedTrailer(what) => {
            bad_request("InvalidRequest", format!("Value for {PREFIX}{what} trailing header is invalid."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(headers: &[(&'static str, &str)]) -> Result<Option<Algorithm>, String> {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let expected = announced(&headers, None).map_err(|error| error.code().as_str().to_owned())?;
        Ok(expected.header.map(|(algorithm, _)| algorithm).or(expected.in_trailer))
    }

    #[test]
    fn contradictions_are_refused() {
        let (crc, sha) = (("x-amz-checksum-crc32", "AAAAAA=="), ("x-amz-checksum-sha1", "x"));
        let trailer = ("x-amz-trailer", "x-amz-checksum-crc32");
        assert_eq!(code(&[]), Ok(None));
        assert_eq!(code(&[("content-md5", "x")]), Ok(None));
        assert_eq!(code(&[crc]), Ok(Some(Algorithm::Crc32)));
        assert_eq!(code(&[crc, trailer, ("x-amz-sdk-checksum-algorithm", "CRC32")]), Ok(Some(Algorithm::Crc32)));
        assert_eq!(code(&[("x-amz-trailer", "X-Amz-Checksum-XXHash3")]), Ok(Some(Algorithm::Xxhash3)));
        for wrong in [
            &[crc, sha][..],
            &[sha, trailer],
            &[crc, ("x-amz-sdk-checksum-algorithm", "SHA1")],
            &[crc, ("x-amz-sdk-checksum-algorithm", "CRC16")],
            &[("x-amz-sdk-checksum-algorithm", "SHA256")],
            &[("x-amz-trailer", "x-amz-checksum-crc16")],
            &[("x-amz-trailer", "x-other")],
        ] {
            assert_eq!(code(wrong), Err("InvalidRequest".to_owned()), "{wrong:?}");
        }
    }
}
