//! The signatures of chunks. Each covers the signature before it; the first covers that of the request. So no chunk can be
//! changed, left out or moved.

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use super::super::authentication::HeaderSignature;

/// Verifies the chunks of one body, in order.
pub(super) struct Signatures {
    key: Hmac<Sha256>,
    /// Date and scope, a line each.
    head: String,
    /// Hexadecimal.
    previous: String,
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"))
}

impl Signatures {
    /// `of_request`: has been verified.
    pub(super) fn new(secret_key: &str, of_request: &HeaderSignature<'_>) -> Self {
        let HeaderSignature { date, scope, signature } = *of_request;
        let mut key = format!("AWS4{secret_key}").into_bytes();
        for part in scope.split('/') {
            key = keyed(&key).chain_update(part).finalize().into_bytes().to_vec();
        }
        Self { key: keyed(&key), head: format!("{date}\n{scope}"), previous: signature.to_owned() }
    }

    /// Whether a chunk has this signature.
    pub(super) fn verify_chunk(&mut self, chunk: Sha256, signature: &str) -> bool {
        let nothing = hex::encode(Sha256::digest(b""));
        self.verify("AWS4-HMAC-SHA256-PAYLOAD", &format!("{nothing}\n{}", hex::encode(chunk.finalize())), signature)
    }

    /// Whether the trailer, as lines of `name:value`, has this signature.
    pub(super) fn verify_trailer(&mut self, lines: &str, signature: &str) -> bool {
        self.verify("AWS4-HMAC-SHA256-TRAILER", &hex::encode(Sha256::digest(lines)), signature)
    }

    fn verify(&mut self, algorithm: &str, digests: &str, signature: &str) -> bool {
        let signed = format!("{algorithm}\n{}\n{}\n{digests}", self.head, self.previous);
        let Ok(given) = hex::decode(signature) else { return false };
        let is_right = self.key.clone().chain_update(signed).verify_slice(&given).is_ok();
        signature.clone_into(&mut self.previous);
        is_right
    }
}
