//! Signature Version 4 in headers, as SDKs sign: the digest of the body is signed too. The key of a day is derived
//! once. (`rusty-s3`, which `s3` uses, presigns URLs.)

use std::cell::RefCell;

use chrono::{DateTime, Utc};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

const SIGNED: &str = "host;x-amz-content-sha256;x-amz-date";

pub struct Signer {
    access_key: String,
    secret_key: String,
    region: String,
    /// A day, `20261127`, and its key.
    key: RefCell<(String, Vec<u8>)>,
}

/// The headers `x-amz-date` and `authorization`.
pub struct Signature {
    pub date: String,
    pub authorization: String,
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("an HMAC takes a key of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// The digest of a body, for the header `x-amz-content-sha256`.
pub fn digest(body: &[u8]) -> String {
    hex::encode(Sha256::digest(body))
}

impl Signer {
    pub fn new(access_key: &str, secret_key: &str, region: &str) -> Self {
        Self {
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            region: region.to_owned(),
            key: RefCell::default(),
        }
    }

    /// Signs a request without other headers. `path` and `query` must be in canonical form: percent-encoded, and
    /// parameters in the order of their names.
    pub fn sign(
        &self,
        method: &str,
        host: &str,
        path: &str,
        query: &str,
        digest: &str,
        now: DateTime<Utc>,
    ) -> Signature {
        let date = now.format("%Y%m%dT%H%M%SZ").to_string();
        let day = &date[..8];
        let canonical = format!(
            "{method}\n{path}\n{query}\nhost:{host}\nx-amz-content-sha256:{digest}\nx-amz-date:{date}\n\n\
             {SIGNED}\n{digest}"
        );
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex::encode(Sha256::digest(canonical)));
        let mut key = self.key.borrow_mut();
        if key.0 != day {
            let secret = format!("AWS4{}", self.secret_key);
            let steps = [day, &self.region, "s3", "aws4_request"];
            *key = (day.to_owned(), steps.iter().fold(secret.into_bytes(), |key, step| mac(&key, step)));
        }
        let signature = hex::encode(mac(&key.1, &text));
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={SIGNED},Signature={signature}",
            self.access_key
        );
        Signature { date, authorization }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example "GET Bucket (List Objects)" of the documentation of Signature Version 4.
    #[test]
    fn signs_as_the_documentations_example() {
        let signer = Signer::new("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1");
        let now = "2013-05-24T00:00:00Z".parse().unwrap();
        let of = |query| signer.sign("GET", "examplebucket.s3.amazonaws.com", "/", query, &digest(b""), now);
        let signature = of("max-keys=2&prefix=J");
        assert_eq!(signature.date, "20130524T000000Z");
        assert_eq!(
            signature.authorization,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;x-amz-content-sha256;x-amz-date,\
             Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
        assert_ne!(of("max-keys=3&prefix=J").authorization, signature.authorization);
        assert_eq!(of("max-keys=2&prefix=J").authorization, signature.authorization, "also with the key of before");
    }
}
