//! The hash of a request (`mantle.requests.request_hash`). A retry under the same request id must have the same hash
//! (P19). It covers the verb, the namespace, the path and the parameters. It covers nothing that a second resolution
//! could change, such as ids.

use sha2::{Digest, Sha256};

pub struct RequestHash(Sha256);

impl RequestHash {
    /// Starts with the verb, the namespace's name and the key.
    pub fn new(verb: &str, namespace: &str, key: &str) -> Self {
        Self(Sha256::new()).part(verb.as_bytes()).part(namespace.as_bytes()).part(key.as_bytes())
    }

    /// Adds a parameter. Its length is hashed too, so that two neighbours cannot be confused with two others.
    pub fn part(mut self, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    /// Adds a parameter that may be absent; absent differs from empty.
    pub fn optional(self, bytes: Option<impl AsRef<[u8]>>) -> Self {
        match bytes {
            None => self.part([0u8]),
            Some(bytes) => self.part([1u8]).part(bytes),
        }
    }

    /// The first 8 bytes of the SHA-256.
    pub fn finish(self) -> i64 {
        let digest: [u8; 32] = self.0.finalize().into();
        i64::from_le_bytes(std::array::from_fn(|at| digest[at]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_together() {
        let hash = |a: &str, b: &str| RequestHash::new("mkdir", a, b).finish();
        assert_eq!(hash("ns", "a/b"), hash("ns", "a/b"));
        assert_ne!(hash("ns", "a/b"), hash("nsa", "/b"));
        let base = || RequestHash::new("put", "ns", "k");
        assert_ne!(base().optional(None::<&str>).finish(), base().optional(Some("")).finish());
        assert_ne!(base().part("x").finish(), base().part("y").finish());
    }
}
