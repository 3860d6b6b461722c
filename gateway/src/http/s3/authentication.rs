//! The form of a request's signature, checked before `s3s` verifies the signature itself. `s3s` accepts more than S3
//! does: the old signature (SigV2), any region, any expiry, and headers that were added after signing.
//!
//! Codes and texts are those of AWS.

use std::{borrow::Cow, collections::HashMap};

use chrono::NaiveDateTime;
use http::{HeaderMap, Method, Uri, header, request::Parts};
use s3s::{S3Error, S3ErrorCode, s3_error};

use super::errors::{self, bad_request};
use crate::http::header_text;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "s3";
const TERMINATOR: &str = "aws4_request";
const CONTENT_SHA256: &str = "x-amz-content-sha256";
const DATE: &str = "x-amz-date";
/// The longest life of a presigned URL, in seconds: a week.
const EXPIRES_MAX: u64 = 604_800;
/// Parameters of a presigned URL.
pub(super) const PRESIGNED: [&str; 6] =
    ["X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature"];
/// Parameters of the old signature.
const OLD: [&str; 2] = ["AWSAccessKeyId", "Signature"];
/// Values of `x-amz-content-sha256` besides a digest. Signatures by elliptic curves (`ECDSA`) are not offered.
const PAYLOADS: [&str; 4] = [
    "UNSIGNED-PAYLOAD",
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
];
/// Headers that are stored with an object. Whoever has a presigned URL may not add them. Content-Type is not among them,
/// because browsers add one, and SDKs do not sign it.
const STORED: [header::HeaderName; 5] = [
    header::CACHE_CONTROL,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::EXPIRES,
];

/// Where a request is signed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Header,
    Query,
}

impl Place {
    /// The error of a part that is malformed.
    fn malformed(self, why: &str) -> S3Error {
        let (code, what) = match self {
            Self::Header => ("AuthorizationHeaderMalformed", "The authorization header is malformed"),
            Self::Query => ("AuthorizationQueryParametersError", "Error parsing the X-Amz-Credential parameter"),
        };
        bad_request(code, format!("{what}; {why}"))
    }
}

fn denied(message: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::AccessDenied, message)
}

/// An error if S3 would not look at the signature at all. A request without any is left to `s3s`, which refuses it.
pub(super) fn check(parts: &Parts, region: &str) -> Result<(), S3Error> {
    let Parts { method, uri, headers, .. } = parts;
    refuse_forms(method, headers)?;
    let query = Query::of(uri);
    if headers.contains_key("x-amz-security-token") || query.has("X-Amz-Security-Token") {
        return Err(bad_request("InvalidToken", "The provided token is malformed or otherwise invalid."));
    }
    let in_query = PRESIGNED.iter().chain(&OLD).any(|name| query.has(name));
    match headers.get_all(header::AUTHORIZATION).iter().count() {
        0 if in_query => check_query(&query, headers, region),
        0 => Ok(()),
        1 if !in_query => check_header(headers, region),
        _ => Err(bad_request(
            "InvalidArgument",
            "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string parameter \
             or the Authorization header should be specified",
        )),
    }
}

/// A form is signed by its fields, which `s3s` would look at instead of the header.
fn refuse_forms(method: &Method, headers: &HeaderMap) -> Result<(), S3Error> {
    let content_type = header_text(headers, header::CONTENT_TYPE).unwrap_or_default();
    let is_form =
        content_type.trim_start().get(..19).is_some_and(|kind| kind.eq_ignore_ascii_case("multipart/form-data"));
    match method == Method::POST && is_form {
        true => Err(errors::not_offered("form uploads are not offered")),
        false => Ok(()),
    }
}

fn old_signature() -> S3Error {
    bad_request(
        "InvalidRequest",
        format!("The authorization mechanism you have provided is not supported. Please use {ALGORITHM}."),
    )
}

fn check_header(headers: &HeaderMap, region: &str) -> Result<(), S3Error> {
    let place = Place::Header;
    let text = header_text(headers, header::AUTHORIZATION).unwrap_or_default().trim();
    let (algorithm, rest) = text.split_once(' ').unwrap_or((text, ""));
    if algorithm != ALGORITHM {
        return Err(match algorithm.starts_with("AWS") {
            true => old_signature(),
            false => bad_request("InvalidArgument", "Unsupported Authorization Type"),
        });
    }
    let fields = fields(rest)?;
    let field = |name: &str| {
        let missing = || place.malformed(&format!("missing {name}."));
        fields.get(name).copied().filter(|value| !value.is_empty()).ok_or_else(missing)
    };
    field("Signature")?;
    let date = header_text(headers, DATE)
        .filter(|date| NaiveDateTime::parse_from_str(date, "%Y%m%dT%H%M%SZ").is_ok())
        .ok_or_else(|| denied("AWS authentication requires a valid Date or x-amz-date header."))?;
    check_scope(place, field("Credential")?, date, region)?;
    check_payload(place, headers)?;
    check_signed_headers(place, field("SignedHeaders")?, headers)
}

/// The components of an `Authorization` header, without its algorithm.
fn fields(text: &str) -> Result<HashMap<&str, &str>, S3Error> {
    let (place, mut fields) = (Place::Header, HashMap::new());
    for field in text.split(',').map(str::trim).filter(|field| !field.is_empty()) {
        let (name, value) = field.split_once('=').ok_or_else(|| place.malformed("a component has no value."))?;
        if fields.insert(name, value).is_some() {
            return Err(place.malformed(&format!("{name} is there twice.")));
        }
    }
    Ok(fields)
}

/// The signature in a request's header, which the signatures of chunks continue.
pub(super) struct HeaderSignature<'a> {
    /// `x-amz-date`.
    pub(super) date: &'a str,
    /// `DAY/REGION/SERVICE/aws4_request`.
    pub(super) scope: &'a str,
    /// Hexadecimal.
    pub(super) signature: &'a str,
}

impl<'a> HeaderSignature<'a> {
    /// `None` if the request has none, or it is malformed.
    pub(super) fn of(headers: &'a HeaderMap) -> Option<Self> {
        let (_, rest) = header_text(headers, header::AUTHORIZATION)?.trim().split_once(' ')?;
        let fields = fields(rest).ok()?;
        // A key may contain slashes.
        let credential = fields.get("Credential")?;
        let (key_end, _) = credential.rmatch_indices('/').nth(3)?;
        Some(Self {
            date: header_text(headers, DATE)?,
            scope: &credential[key_end + 1..],
            signature: fields.get("Signature")?,
        })
    }
}

fn check_query(query: &Query<'_>, headers: &HeaderMap, region: &str) -> Result<(), S3Error> {
    let place = Place::Query;
    if OLD.iter().any(|name| query.has(name)) && !query.has("X-Amz-Algorithm") {
        return Err(old_signature());
    }
    let error = |message: String| bad_request("AuthorizationQueryParametersError", message);
    let mut values = [""; PRESIGNED.len()];
    for (value, name) in values.iter_mut().zip(PRESIGNED) {
        *value = query.one(name).filter(|value| !value.is_empty()).ok_or_else(|| {
            error(format!(
                "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, \
                 X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters, each once: look at {name}."
            ))
        })?;
    }
    let [algorithm, credential, date, expires, signed, _] = values;
    if algorithm != ALGORITHM {
        return Err(error(format!("X-Amz-Algorithm only supports \"{ALGORITHM}\"")));
    }
    let expires: u64 = expires.parse().map_err(|_| error("X-Amz-Expires should be a number".into()))?;
    if expires == 0 || expires > EXPIRES_MAX {
        return Err(error(format!(
            "X-Amz-Expires must be at least 1 and less than a week (in seconds); that is, the given X-Amz-Expires must be \
             between 1 and {EXPIRES_MAX} seconds"
        )));
    }
    check_scope(place, credential, date, region)?;
    check_payload(place, headers)?;
    check_signed_headers(place, signed, headers)
}

/// `KEY/DATE/REGION/SERVICE/aws4_request`. A key may contain slashes.
fn check_scope(place: Place, credential: &str, date: &str, expected_region: &str) -> Result<(), S3Error> {
    let parts: Vec<&str> = credential.rsplitn(5, '/').collect();
    let [terminator, service, region, day, key] = parts[..] else {
        return Err(place.malformed(
            "the Credential is mal-formed; expecting \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\".",
        ));
    };
    let wrong = |what: &str, given: &str, expected: &str| {
        place.malformed(&format!("incorrect {what} \"{given}\". This endpoint belongs to \"{expected}\"."))
    };
    if key.is_empty() {
        return Err(place.malformed("a non-empty Access Key (AKID) must be provided in the credential."));
    }
    if terminator != TERMINATOR {
        return Err(wrong("terminal", terminator, TERMINATOR));
    }
    if service != SERVICE {
        return Err(wrong("service", service, SERVICE));
    }
    if region != expected_region {
        return Err(place.malformed(&format!("the region '{region}' is wrong; expecting '{expected_region}'")));
    }
    let is_day = day.len() == 8 && day.bytes().all(|byte| byte.is_ascii_digit());
    if !is_day || !date.starts_with(day) {
        return Err(place.malformed(&format!("invalid credential date \"{day}\": it is not the day of the request.")));
    }
    Ok(())
}

fn check_payload(place: Place, headers: &HeaderMap) -> Result<(), S3Error> {
    let Some(value) = headers.get(CONTENT_SHA256) else {
        return match place {
            Place::Query => Ok(()),
            Place::Header => Err(bad_request(
                "InvalidRequest",
                format!("Missing required header for this request: {CONTENT_SHA256}"),
            )),
        };
    };
    let value = value.to_str().unwrap_or_default();
    let is_digest =
        value.len() == 64 && value.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    match is_digest || PAYLOADS.contains(&value) {
        true => Ok(()),
        false => Err(bad_request(
            "InvalidArgument",
            format!("{CONTENT_SHA256} must be {}, or a valid sha256 value.", PAYLOADS.join(", ")),
        )),
    }
}

/// The host and all `x-amz-*` headers must be signed, and what is signed must be there.
fn check_signed_headers(place: Place, signed: &str, headers: &HeaderMap) -> Result<(), S3Error> {
    let signed: Vec<&str> = signed.split(';').collect();
    if !signed.contains(&"host") {
        return Err(place.malformed("the host must be among the signed headers."));
    }
    if let Some(absent) = signed.iter().find(|name| **name != "host" && !headers.contains_key(**name)) {
        let message = format!("The header {absent} is signed, and the request does not have it.");
        return Err(s3_error!(SignatureDoesNotMatch, "{message}"));
    }
    let must_be_signed = |name: &header::HeaderName| match place {
        // The digest of the body is not part of a presigned URL: it can only make the request stricter.
        Place::Query if name == CONTENT_SHA256 => false,
        Place::Query if STORED.contains(name) => true,
        _ => name.as_str().starts_with("x-amz-"),
    };
    match headers.keys().find(|name| must_be_signed(name) && !signed.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let message = format!("There were headers present in the request which were not signed: {name}");
            Err(s3_error!(AccessDenied, "{message}"))
        }
    }
}

/// The parameters of a request, decoded.
struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Query<'a> {
    fn of(uri: &'a Uri) -> Self {
        Self(form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).collect())
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(given, _)| given == name)
    }

    /// The value of a parameter that is there once.
    fn one(&self, name: &str) -> Option<&str> {
        let mut values = self.0.iter().filter(|(given, _)| given == name).map(|(_, value)| value.as_ref());
        values.next().filter(|_| values.next().is_none())
    }
}
