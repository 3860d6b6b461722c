//! ListObjectsV2 with presigned URLs (Signature Version 4): the only S3 call that the bench measures.
//!
//! An SDK would add its own time to each measured call, so the bench sends the request itself and only counts the keys.

use std::iter;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use reqwest::{Client, StatusCode, Url};
use rusty_s3::{Method, signing::sign};

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
            client: Client::new(),
            endpoint: endpoint.parse().context("the S3 endpoint must be http://host:port")?,
            region: region.to_owned(),
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
        })
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
