//! What an index signs when it has prepared a directory rename: the bench calls the transaction without an index.

use anyhow::Result;
use mantle_types::{DirectoryId, Epoch, GroupId, NamespaceId, PartitionId, Prepared, RequestKey};
use uuid::Uuid;

use super::Session;

const EPOCH_AND_KEY: &str = "SELECT g.epoch, mantle.prepare_key(1) FROM mantle.index_group(1) g";
/// Who renames.
const PRINCIPAL: u32 = 1000;

/// Group 1 as its leader knows it.
pub struct Signer {
    /// Its epoch.
    pub epoch: i64,
    key: Vec<u8>,
}

/// A directory's rename, under a request and an attempt of its own.
pub struct Rename<'a> {
    pub ns: i64,
    pub request: Uuid,
    pub attempt: i64,
    /// Where it is, its name there with the slash, its id.
    pub source: (i64, &'a str, i64),
    pub destination: (i64, &'a str),
}

impl Signer {
    /// Asks as superuser.
    pub async fn new(admin: &Session) -> Result<Self> {
        let row = admin.client.query_one(EPOCH_AND_KEY, &[]).await?;
        Ok(Self { epoch: row.get(0), key: row.get(1) })
    }

    /// The proof of a rename.
    pub fn sign(&self, of: &Rename<'_>) -> Vec<u8> {
        let prepared = Prepared {
            index_group: GroupId(1),
            epoch: Epoch(self.epoch as u64),
            attempt: of.attempt as u64,
            request: RequestKey { principal: PRINCIPAL, ns: NamespaceId(of.ns as u64), id: of.request },
            source_pid: PartitionId(of.source.0 as u64),
            source_name: of.source.1.trim_end_matches('/'),
            source_id: DirectoryId(of.source.2 as u64),
            destination_pid: PartitionId(of.destination.0 as u64),
            destination_name: of.destination.1.trim_end_matches('/'),
            victim: None,
        };
        prepared.proof(&self.key).to_vec()
    }
}
