//! RenameObject, which `s3s` does not know. With a slash at the end of both keys it moves a directory: an offer beyond S3.

use http::HeaderMap;
use mantle_types::{Error, ErrorCode};
use uuid::Uuid;

use super::{S3Operations, copy_source, errors::Refusal};
use crate::{app::Call, ops::rename::Rename};

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
        let (of, source) = copy_source::read(headers, SOURCE)?;
        if of != bucket {
            return Err(Error::new(ErrorCode::InvalidArgument, "objects are renamed within one bucket").into());
        }
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
