//! Authenticates callers by bearer token or S3 access key, from the credentials file, which is read once, at start. Tokens
//! are compared by SHA-256, so that the time of a lookup reveals nothing about a token.

use std::{collections::HashMap, path::Path};

use anyhow::{Context, ensure};
use mantle_types::{Caller, Error, ErrorCode, Result};
use s3s::{
    S3Result,
    auth::{S3Auth, SecretKey},
    s3_error,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::secret_file;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    credential: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    access_key: String,
    secret_key: String,
    token: String,
    uid: u32,
    #[serde(default)]
    gids: Vec<u32>,
}

/// The accepted credentials.
pub struct Credentials {
    keys: HashMap<String, (SecretKey, Caller)>,
    tokens: HashMap<[u8; 32], Caller>,
}

impl Credentials {
    /// Reads the file; it must be unreadable to group and others.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        Self::of(secret_file::read(path)?)
            .with_context(|| format!("{} is not a valid credentials file", path.display()))
    }

    fn of(file: File) -> anyhow::Result<Self> {
        let (mut keys, mut tokens) = (HashMap::new(), HashMap::new());
        for entry in file.credential {
            ensure!(
                !entry.access_key.is_empty() && !entry.secret_key.is_empty() && !entry.token.is_empty(),
                "access_key, secret_key and token must not be empty"
            );
            ensure!(i32::try_from(entry.uid).is_ok(), "uid {} is out of range", entry.uid);
            ensure!(entry.gids.iter().all(|g| i32::try_from(*g).is_ok()), "a gid is out of range");
            let caller = Caller { uid: entry.uid, gids: entry.gids };
            let doubled = keys.insert(entry.access_key, (entry.secret_key.into(), caller.clone())).is_some()
                | tokens.insert(fingerprint(&entry.token), caller).is_some();
            ensure!(!doubled, "an access_key or token appears twice");
        }
        Ok(Self { keys, tokens })
    }

    /// The caller of an access key. The signature must be verified already.
    pub fn by_access_key(&self, access_key: &str) -> Result<Caller> {
        self.keys.get(access_key).map(|(_, caller)| caller.clone()).ok_or_else(|| ErrorCode::Unauthenticated.into())
    }

    /// The caller of an `Authorization` header with a bearer token.
    pub fn by_authorization(&self, header: Option<&str>) -> Result<Caller> {
        let refuse = |why: &str| Error::new(ErrorCode::Unauthenticated, why);
        let header = header.ok_or_else(|| refuse("the request has no Authorization header"))?;
        let (scheme, token) = header.split_once(' ').ok_or_else(|| refuse("the Authorization header is malformed"))?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(refuse("a bearer token or an S3 signature is expected"));
        }
        let caller = self.tokens.get(&fingerprint(token.trim())).cloned();
        caller.ok_or_else(|| refuse("the token is not known"))
    }
}

fn fingerprint(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Looks up secret keys for `s3s`.
pub struct SecretKeys(pub std::sync::Arc<Credentials>);

#[async_trait::async_trait]
impl S3Auth for SecretKeys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let secret = self.0.keys.get(access_key).map(|(secret, _)| secret.clone());
        secret.ok_or_else(|| {
            s3_error!(InvalidAccessKeyId, "The AWS Access Key Id you provided does not exist in our records.")
        })
    }
}

/// The group that new entries of a caller get.
pub fn primary_group(caller: &Caller) -> u32 {
    caller.gids.first().copied().unwrap_or(caller.uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        "[[credential]]\naccess_key = \"AK\"\nsecret_key = \"SK\"\ntoken = \"TK\"\nuid = 7\ngids = [20, 21]\n";

    fn parse(text: &str) -> anyhow::Result<Credentials> {
        secret_file::parse(text).and_then(Credentials::of)
    }

    #[test]
    fn tokens_and_keys_name_the_caller() {
        let credentials = parse(FILE).unwrap();
        let caller = Caller { uid: 7, gids: vec![20, 21] };
        assert_eq!(credentials.by_access_key("AK").unwrap(), caller);
        assert_eq!(credentials.by_authorization(Some("Bearer TK")).unwrap(), caller);
        assert_eq!(primary_group(&caller), 20);
        for bad in [None, Some("Bearer"), Some("Bearer SK"), Some("Basic TK"), Some("")] {
            assert_eq!(credentials.by_authorization(bad).unwrap_err().code(), ErrorCode::Unauthenticated);
        }
    }

    #[test]
    fn bad_files_are_refused_without_quoting_them() {
        assert!(parse(&format!("{FILE}{FILE}")).is_err());
        let Err(error) = parse("[[credential]]\nsecret_key = \"hush") else { panic!("accepted") };
        assert!(!format!("{error:#}").contains("hush"), "{error:#}");
    }
}
