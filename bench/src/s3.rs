//! The S3 calls that the bench measures, with presigned URLs (Signature Version 4).
//!
//! An SDK would add its own time to each measured call, so the bench sends the requests itself and reads no more of an
//! answer than it needs.

use std::iter;

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use reqwest::{Body, Client, Response, StatusCode, Url};
use rusty_s3::{Method, signing::sign};

use crate::http;

const EXPIRES_SECONDS: u64 = 60;

pub struct S3 {
    client: Client,
    endpoint: Url,
    region: String,
    access_key: String,
    secret_key: String,
}

impl S3 {
    /// A client of `endpoint` (`http://host:port`).
    pub fn new(endpoint: &str, region: &str, access_key: &str, secret_key: &str) -> Result<Self> {
        Ok(Self {
            client: http::client(),
            endpoint: endpoint.parse().context("the S3 endpoint must be http://host:port")?,
            region: region.to_owned(),
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
        })
    }

    /// Calls through this client from now on.
    pub fn by(self, client: Client) -> Self {
        Self { client, ..self }
    }

    /// Requests one page of keys after `start_after`; answers how many keys it has.
    pub async fn list(&self, bucket: &str, start_after: &str, keys_max: usize) -> Result<usize> {
        let url = self.page_url(bucket, start_after, keys_max, Timestamp::now());
        let answer = self.client.get(url).send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        if status != StatusCode::OK {
            bail!("ListObjectsV2 of {bucket} after {start_after:?}: {status} {text}");
        }
        Ok(text.matches("<Key>").count())
    }

    /// Makes a bucket.
    pub async fn create_bucket(&self, bucket: &str) -> Result<()> {
        self.call(Method::Put, bucket, &[], &[], Body::default()).await.map(drop)
    }

    /// Puts an object, or with `part` a part of an upload; answers its etag.
    pub async fn put(&self, path: &str, part: Option<(&str, usize)>, body: impl Into<Body>) -> Result<String> {
        let number = part.map(|(_, number)| number.to_string()).unwrap_or_default();
        let query = part.map(|(upload, _)| vec![("partNumber", number.as_str()), ("uploadId", upload)]);
        let answer = self.call(Method::Put, path, &query.unwrap_or_default(), &[], body.into()).await?;
        Ok(answer.headers().get("etag").context("no etag")?.to_str()?.to_owned())
    }

    /// Reads an object; answers how many bytes it has.
    pub async fn get(&self, path: &str) -> Result<usize> {
        Ok(self.call(Method::Get, path, &[], &[], Body::default()).await?.bytes().await?.len())
    }

    /// Removes an object.
    pub async fn delete(&self, path: &str) -> Result<()> {
        self.call(Method::Delete, path, &[], &[], Body::default()).await.map(drop)
    }

    /// Copies an object.
    pub async fn copy(&self, source: &str, path: &str) -> Result<()> {
        let source = format!("/{source}");
        let answer = self.call(Method::Put, path, &[], &[("x-amz-copy-source", &source)], Body::default()).await?;
        // An error that comes late has the status 200.
        let text = answer.text().await?;
        ensure!(text.contains("<CopyObjectResult"), "CopyObject of {source}: {text}");
        Ok(())
    }

    /// Begins an upload; answers its id.
    pub async fn create_upload(&self, path: &str) -> Result<String> {
        let text = self.call(Method::Post, path, &[("uploads", "")], &[], Body::default()).await?.text().await?;
        let id = text.split_once("<UploadId>").and_then(|(_, rest)| rest.split_once("</UploadId>"));
        Ok(id.context("no upload id")?.0.to_owned())
    }

    /// Completes an upload of parts with these etags.
    pub async fn complete_upload(&self, path: &str, upload: &str, etags: &[String]) -> Result<()> {
        let part = |(at, etag): (usize, &String)| {
            format!("<Part><PartNumber>{}</PartNumber><ETag>{etag}</ETag></Part>", at + 1)
        };
        let parts: String = etags.iter().enumerate().map(part).collect();
        let document = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let answer = self.call(Method::Post, path, &[("uploadId", upload)], &[], document.into()).await?;
        let text = answer.text().await?;
        ensure!(text.contains("<CompleteMultipartUploadResult"), "CompleteMultipartUpload of {path}: {text}");
        Ok(())
    }

    /// Sends a request for a bucket or an object, `bucket/key`.
    async fn call(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        headers: &[(&str, &str)],
        body: Body,
    ) -> Result<Response> {
        let mut url = self.endpoint.clone();
        url.set_path(path);
        let Self { region, access_key, secret_key, .. } = self;
        let (now, name) = (Timestamp::now(), method.to_str());
        let signed = headers.iter().copied();
        let url = sign(
            &now,
            method,
            url,
            access_key,
            secret_key,
            None,
            region,
            EXPIRES_SECONDS,
            query.iter().copied(),
            signed,
        );
        let mut request = self.client.request(name.parse()?, url).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await?;
        let status = answer.status();
        ensure!(status.is_success(), "{name} {path}: {status} {}", answer.text().await.unwrap_or_default());
        Ok(answer)
    }

    fn page_url(&self, bucket: &str, start_after: &str, keys_max: usize, now: Timestamp) -> Url {
        let mut url = self.endpoint.clone();
        url.set_path(bucket);
        let keys_max = keys_max.to_string();
        // In the order of their names, as `sign` requires.
        let mut query = vec![("list-type", "2"), ("max-keys", keys_max.as_str())];
        if !start_after.is_empty() {
            query.push(("start-after", start_after));
        }
        let Self { region, access_key, secret_key, .. } = self;
        let (query, headers) = (query.into_iter(), iter::empty());
        sign(&now, Method::Get, url, access_key, secret_key, None, region, EXPIRES_SECONDS, query, headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(keys_max: usize) -> String {
        let s3 = S3::new("http://localhost:1/", "us-east-1", "key", "secret").unwrap();
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        s3.page_url("b", "a-._~Z/ä +", keys_max, now).into()
    }

    #[test]
    fn everything_but_the_unreserved_is_encoded() {
        let url = url(9);
        assert!(url.starts_with("http://localhost:1/b?"), "{url}");
        assert!(url.contains("&start-after=a-._~Z%2F%C3%A4%20%2B&"), "{url}");
    }

    #[test]
    fn the_signature_covers_day_region_and_query() {
        let one = url(2);
        assert!(one.contains("X-Amz-Credential=key%2F20231114%2Fus-east-1%2Fs3%2Faws4_request&"), "{one}");
        let signature = |url: &str| url.split_once("X-Amz-Signature=").unwrap().1.to_owned();
        assert_ne!(signature(&one), signature(&url(3)));
        assert_eq!(one, url(2));
    }
}
