//! RenameObject, which `s3s` does not know. With a slash at the end of both keys it moves a directory: an offer beyond S3.

use http::HeaderMap;
use mantle_types::{Error, ErrorCode};
use uuid::Uuid;

use super::{S3Operations, errors::Refusal};
use crate::{app::Call, http::percent, ops::rename::Rename};

const SOURCE: &str = "x-amz-rename-source";
const TOKEN: &str = "x-amz-client-token";
/// Longest token, in bytes, as in S3.
const TOKEN_BYTES_MAX: usize = 64;

impl S3Operations {
    /// `overwrites`: an object of the new name is replaced.
    pub(super) async fn rename_object(
        &self,
        call: Call,
        bucket: &str,
        key: String,
        headers: &HeaderMap,
        overwrites: bool,
    ) -> Result<(), Refusal> {
        let source = source(headers, bucket)?;
        let call = with_token(call, headers)?;
        let (bucket, rename) = (bucket.to_owned(), Rename { source, destination: key, overwrite: overwrites });
        let renamed = self.mutate(&call, |gateway, call| async move { gateway.rename(&call, &bucket, &rename).await });
        match renamed.await {
            Err(e) if e.code() == ErrorCode::AlreadyExists && !overwrites => {
                Err(Error::new(ErrorCode::PreconditionFailed, "an entry of the new name exists").into())
            }
            other => Ok(other.map(drop)?),
        }
    }
}

/// The key in `/bucket/key`, encoded, of the same bucket.
fn source(headers: &HeaderMap, bucket: &str) -> Result<String, Error> {
    let invalid = |why: &str| Error::new(ErrorCode::InvalidArgument, format!("{SOURCE} {why}"));
    let text = headers.get(SOURCE).ok_or_else(|| invalid("is missing"))?.to_str();
    let decoded = percent::decode(text.map_err(|_| invalid("is not text"))?)?;
    let path = decoded.strip_prefix('/').unwrap_or(&decoded);
    match path.split_once('/') {
        Some((of, key)) if of == bucket && !key.is_empty() => Ok(key.to_owned()),
        Some(_) => Err(invalid("names another bucket, and objects move within one")),
        None => Err(invalid("must have the form /bucket/key")),
    }
}

/// The client's token makes repeated calls one, as a request id does.
fn with_token(call: Call, headers: &HeaderMap) -> Result<Call, Error> {
    let Some(token) = headers.get(TOKEN) else { return Ok(call) };
    let token = token.as_bytes();
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        let why = format!("{TOKEN} has 1 to {TOKEN_BYTES_MAX} bytes");
        return Err(Error::new(ErrorCode::InvalidArgument, why));
    }
    Ok(Call { request: Uuid::new_v5(&Uuid::NAMESPACE_OID, token), client_key: true, ..call })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_of_the_same_bucket() {
        let source = |text: &str| {
            let headers = HeaderMap::from_iter([(http::HeaderName::from_static(SOURCE), text.parse().unwrap())]);
            source(&headers, "b").map_err(|e| e.code())
        };
        assert_eq!(source("/b/a%20b/c%2F").as_deref(), Ok("a b/c/"));
        assert_eq!(source("b/k").as_deref(), Ok("k"));
        for bad in ["/c/k", "/b/", "/b", "", "k"] {
            assert_eq!(source(bad), Err(ErrorCode::InvalidArgument), "{bad}");
        }
    }
}
