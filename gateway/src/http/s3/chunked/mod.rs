//! Bodies in the form `aws-chunked`. `s3s` decodes them too, but it holds each chunk in memory whole (some clients send an
//! object as one chunk), takes a body without its last chunk for complete, and does not say what is wrong. So the body is
//! kept from it: [`withhold`] takes the body out of the request before `s3s` verifies the signature, and [`restore`] gives
//! it back, decoded, afterwards.

mod decoder;
mod signature;

use std::{error::Error, sync::Arc};

use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use parking_lot::Mutex;
use s3s::{S3Error, S3Request, s3_error};

use self::{decoder::Decoder, signature::Signatures};
use super::{
    authentication::HeaderSignature,
    framing::{ChunkError, Framing},
};
use crate::{data::Trailer, http::header_text};

const DECODED_LENGTH: &str = "x-amz-decoded-content-length";
const TRAILER: HeaderName = HeaderName::from_static("x-amz-trailer");

/// A body that `s3s` has not seen. Extensions have to be cloned, a body cannot be.
#[derive(Clone)]
struct Withheld(Arc<Mutex<Option<Body>>>);

type Failure = Box<dyn Error + Send + Sync>;

/// Takes the body out of a request, if it is in chunks.
pub(super) fn withhold(parts: &mut http::request::Parts, body: Body) -> Body {
    if !Framing::of(&parts.headers).is_chunked() {
        return body;
    }
    // `s3s` demands this header, and S3 does not.
    if !parts.headers.contains_key(TRAILER) {
        parts.headers.insert(TRAILER, HeaderValue::from_static(""));
    }
    parts.extensions.insert(Withheld(Arc::new(Mutex::new(Some(body)))));
    Body::empty()
}

/// Gives a request its body back, decoded, and inserts its [`Trailer`], which is known when the body has been read.
///
/// # Errors
/// `MissingContentLength` if the request does not say how long the body is; `IncompleteBody` if it says two lengths of a body
/// that is not in chunks.
pub(super) fn restore(request: &mut S3Request<s3s::Body>) -> Result<(), S3Error> {
    let withheld = request.extensions.remove::<Withheld>();
    let headers = &mut request.headers;
    let Some(body) = withheld.and_then(|withheld| withheld.0.lock().take()) else { return check_plain(headers) };
    if headers.get(TRAILER).is_some_and(HeaderValue::is_empty) {
        headers.remove(TRAILER);
    }
    let length = header_text(headers, DECODED_LENGTH).and_then(|text| text.parse::<u64>().ok());
    let length =
        length.ok_or_else(|| s3_error!(MissingContentLength, "You must provide the Content-Length HTTP header."))?;
    let announced = header_text(headers, TRAILER).and_then(|name| HeaderName::try_from(name.trim()).ok());
    let signatures = match Framing::of(headers) {
        Framing::SignedChunks => {
            let verified = HeaderSignature::of(headers).zip(request.credentials.as_ref());
            let (of_request, credentials) = verified.ok_or_else(|| s3_error!(AccessDenied))?;
            Some(Signatures::new(credentials.secret_key.expose(), &of_request))
        }
        _ => None,
    };
    headers.insert(header::CONTENT_LENGTH, length.into());
    let trailer = Trailer::default();
    let body = decode(body.into_data_stream(), Decoder::new(length, announced, signatures), trailer.clone());
    request.input = s3s::Body::http_body_unsync(Body::from_stream(body));
    request.extensions.insert(trailer);
    Ok(())
}

fn check_plain(headers: &HeaderMap) -> Result<(), S3Error> {
    let decoded = headers.get(DECODED_LENGTH);
    match decoded.is_none() || decoded == headers.get(header::CONTENT_LENGTH) {
        true => Ok(()),
        false => {
            let message = ChunkError::Length.to_string();
            Err(s3_error!(IncompleteBody, "{message}"))
        }
    }
}

fn decode(body: BodyDataStream, decoder: Decoder, trailer: Trailer) -> impl Stream<Item = Result<Bytes, Failure>> {
    let start = (body, decoder, Bytes::new());
    stream::try_unfold(start, move |(mut body, mut decoder, mut input)| {
        let trailer = trailer.clone();
        async move {
            loop {
                if let Some(data) = decoder.next(&mut input)? {
                    return Ok(Some((data, (body, decoder, input))));
                }
                match body.next().await {
                    Some(bytes) => input = bytes?,
                    None => {
                        // It is set once: the stream ends here.
                        let _ = trailer.set(decoder.finish()?);
                        return Ok(None);
                    }
                }
            }
        }
    })
}

/// Decodes an unsigned body that comes in pieces of this length.
#[cfg(any(test, fuzzing))]
pub(super) fn decode_pieces(length: u16, body: &[u8], piece: usize) -> Result<Vec<u8>, ChunkError> {
    let announced = Some(HeaderName::from_static("x-amz-checksum-crc32")).filter(|_| length.is_multiple_of(2));
    let decoder = Decoder::new(length.into(), announced, None);
    decoder::decode(decoder, body, &[piece]).map(|(decoded, _)| decoded)
}
