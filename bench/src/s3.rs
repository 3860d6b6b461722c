//! ListObjectsV2 with Signature Version 4, and no more of S3: a client without the cost of an SDK.
//!
//! Source: "Create a signed AWS API request", AWS General Reference.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use chrono::{DateTime, Utc};
use hmac::{Hmac, Mac};
use reqwest::{Client, StatusCode};
use sha2::{Digest, Sha256};

/// Where S3 is, and as whom.
pub struct S3 {
    client: Client,
    endpoint: String,
    host: String,
    region: String,
    access_key: String,
    secret_key: String,
}

impl S3 {
    /// A client of `endpoint` (`http://host:port`).
    pub fn new(endpoint: &str, region: &str, access_key: &str, secret_key: &str) -> Result<Self> {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let host = endpoint.strip_prefix("http://").context("the S3 endpoint must be http://host:port")?.to_owned();
        Ok(Self {
            client: Client::new(),
            endpoint,
            host,
            region: region.to_owned(),
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
        })
    }

    /// One page of keys after `start_after`; how many it has.
    pub async fn list(&self, bucket: &str, start_after: &str, keys_max: usize) -> Result<usize> {
        let keys_max = keys_max.to_string();
        // In the order of their names, as the signature wants them.
        let mut query = vec![("list-type", "2"), ("max-keys", keys_max.as_str())];
        if !start_after.is_empty() {
            query.push(("start-after", start_after));
        }
        let query: Vec<String> =
            query.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
        let query = query.join("&");
        let path = format!("/{bucket}");
        let now = Utc::now();
        let answer = self
            .client
            .get(format!("{}{path}?{query}", self.endpoint))
            .header("x-amz-date", now.format("%Y%m%dT%H%M%SZ").to_string())
            .header("x-amz-content-sha256", hex_of(b""))
            .header("authorization", self.authorization(&path, &query, now))
            .send()
            .await?;
        let status = answer.status();
        let text = answer.text().await?;
        if status != StatusCode::OK {
            bail!("ListObjectsV2 of {bucket} after {start_after:?}: {status} {text}");
        }
        Ok(text.matches("<Key>").count())
    }

    fn authorization(&self, path: &str, query: &str, now: DateTime<Utc>) -> String {
        const SIGNED: &str = "host;x-amz-content-sha256;x-amz-date";
        let (empty, time, day) = (hex_of(b""), now.format("%Y%m%dT%H%M%SZ"), now.format("%Y%m%d").to_string());
        let host = &self.host;
        let request = format!(
            "GET\n{path}\n{query}\nhost:{host}\nx-amz-content-sha256:{empty}\nx-amz-date:{time}\n\n{SIGNED}\n{empty}"
        );
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex_of(request.as_bytes()));
        let key = [&day, &self.region, "s3", "aws4_request"]
            .iter()
            .fold(format!("AWS4{}", self.secret_key).into_bytes(), |key, part| mac(&key, part.as_bytes()));
        let signature = hex::encode(mac(&key, to_sign.as_bytes()));
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={SIGNED}, Signature={signature}",
            self.access_key
        )
    }
}

fn hex_of(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}

/// Percent-encoding of RFC 3986's unreserved set.
fn encode(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_the_unreserved_is_encoded() {
        assert_eq!(encode("a-._~Z/ä +"), "a-._~Z%2F%C3%A4%20%2B");
    }

    #[test]
    fn the_signature_covers_day_region_and_query() {
        let s3 = S3::new("http://localhost:1/", "us-east-1", "key", "secret").unwrap();
        let now = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
        let one = s3.authorization("/b", "list-type=2", now);
        assert!(one.starts_with("AWS4-HMAC-SHA256 Credential=key/20231114/us-east-1/s3/aws4_request, "));
        assert_ne!(one, s3.authorization("/b", "list-type=3", now));
        assert_eq!(one, s3.authorization("/b", "list-type=2", now));
    }
}
