//! S3 over kept connections, with signatures in headers. It sends by hyper itself, because clients share the processors with the
//! servers that are measured. (`s3` speaks more of S3, by presigned URLs.)

use anyhow::{Result, ensure};
use chrono::Utc;
use http_body_util::Full;
use hyper::{Request, StatusCode, body::Bytes};

use crate::{
    sign::{Signer, digest},
    wire::{Connection, address},
};

/// What the signature covers in place of a digest of the body.
const NO_DIGEST: &str = "UNSIGNED-PAYLOAD";

/// The address and the keys of an S3 service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub url: String,
    pub access_key: String,
    pub secret_key: String,
}

/// An S3 service.
pub struct SignedS3 {
    address: String,
    signer: Signer,
}

impl SignedS3 {
    pub fn new(of: &Credentials, region: &str) -> Result<Self> {
        Ok(Self { address: address(&of.url)?, signer: Signer::new(&of.access_key, &of.secret_key, region) })
    }

    pub fn connections(&self, count: usize) -> Vec<Connection> {
        Connection::several(&self.address, count)
    }

    /// Sends a request. `path` and `query` are in canonical form: percent-encoded, and parameters in the order of their names.
    /// `digest`: of the body.
    pub async fn send(
        &self,
        connection: &Connection,
        method: &str,
        (path, query): (&str, &str),
        body: Bytes,
        digest: &str,
    ) -> Result<(StatusCode, Bytes)> {
        let signature = self.signer.sign(method, &self.address, path, query, digest, Utc::now());
        let uri = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("host", &*self.address)
            .header("x-amz-date", signature.date)
            .header("x-amz-content-sha256", digest)
            .header("authorization", signature.authorization)
            .body(Full::new(body))?;
        connection.send(request).await
    }

    /// Makes a bucket; one that exists is no error.
    pub async fn create_bucket(&self, connection: &Connection, bucket: &str) -> Result<()> {
        let (status, text) =
            self.send(connection, "PUT", (&format!("/{bucket}"), ""), Bytes::new(), &digest(b"")).await?;
        let is_there = status.is_success() || status == StatusCode::CONFLICT;
        ensure!(is_there, "the bucket {bucket}: {status} {}", String::from_utf8_lossy(&text));
        Ok(())
    }

    /// Puts an object of `bucket/key`; answers the status, and the text of an error.
    pub async fn put(&self, connection: &Connection, path: &str, body: Bytes) -> Result<(StatusCode, Bytes)> {
        self.send(connection, "PUT", (&format!("/{path}"), ""), body, NO_DIGEST).await
    }

    /// Reads an object of `bucket/key`.
    pub async fn get(&self, connection: &Connection, path: &str) -> Result<(StatusCode, Bytes)> {
        self.send(connection, "GET", (&format!("/{path}"), ""), Bytes::new(), NO_DIGEST).await
    }

    /// Removes an object of `bucket/key`.
    pub async fn delete(&self, connection: &Connection, path: &str) -> Result<()> {
        let (status, text) =
            self.send(connection, "DELETE", (&format!("/{path}"), ""), Bytes::new(), NO_DIGEST).await?;
        ensure!(status.is_success(), "DELETE {path}: {status} {}", String::from_utf8_lossy(&text));
        Ok(())
    }
}
