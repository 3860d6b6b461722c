//! The proof that an index has prepared a directory rename. The bench calls the rename's transaction without an index,
//! so it signs in its place.

use anyhow::Result;
use mantle_types::{DirectoryId, Epoch, GroupId, NamespaceId, PartitionId, Prepared, RequestKey};
use uuid::Uuid;

use super::Session;

const EPOCH_AND_KEY: &str = "SELECT g.epoch, mantle.prepare_key(1) FROM mantle.index_group(1) g";
const PRINCIPAL: u32 = 1000;

/// Epoch and key of index group 1, as its leader knows them.
pub struct Signer {
    pub epoch: i64,
    key: Vec<u8>,
}

/// A directory's rename, under a request and an attempt of its own.
pub struct Rename<'a> {
    pub ns: i64,
    pub request: Uuid,
    pub attempt: i64,
    /// Parent, name with the slash, id.
    pub source: (i64, &'a str, i64),
    pub destination: (i64, &'a str),
}

impl Signer {
    /// Reads them; only as superuser.
    pub async fn new(admin: &Session) -> Result<Self> {
        let row = admin.client.query_one(EPOCH_AND_KEY, &[]).await?;
        Ok(Self { epoch: row.get(0), key: row.get(1) })
    }

    /// The proof that `rename_directory` checks.
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
            replaced: None,
        };
        prepared.proof(&self.key).to_vec()
    }
}
