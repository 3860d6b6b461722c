//! Proof that an index group has prepared a change of directories: resolved it, found no loop and no other lock, and locked
//! its source (DESIGN.md, section 4). PostgreSQL cannot see the index's locks, so the group's leader signs what it prepared,
//! under a key that PostgreSQL keeps for it (`mantle.prepare_key`), and PostgreSQL carries out nothing else. Without it
//! whoever may call `mantle.rename_directory` could make up an attempt, and move a directory below itself.

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::{DirectoryId, Epoch, PartitionId, RequestKey};

/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

/// Of what is signed, so that nothing else under the same key is taken for it.
const DOMAIN: &[u8] = b"mantle prepared 1";

/// A change as it was prepared. Names are without their slashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared<'a> {
    /// The group that has the locks.
    pub index_group: i32,
    /// Its epoch.
    pub epoch: Epoch,
    /// The attempt: the log index of the prepare, and above it the moves of its namespace.
    pub attempt: u64,
    /// Whose lock it is.
    pub request: RequestKey,
    /// Where the source is.
    pub source_pid: PartitionId,
    /// Its name there.
    pub source_name: &'a str,
    /// The directory that is locked.
    pub source_id: DirectoryId,
    /// Where it is to go; the trash for a removal.
    pub destination_pid: PartitionId,
    /// Its name there; empty for a removal.
    pub destination_name: &'a str,
    /// The empty directory that it replaces, if any.
    pub victim: Option<DirectoryId>,
}

impl Prepared<'_> {
    /// The proof: HMAC-SHA-256 over all fields, in order, numbers little-endian, names after their lengths.
    pub fn proof(&self, key: &[u8]) -> [u8; PROOF_BYTES] {
        self.signed(key).finalize().into_bytes().into()
    }

    /// Is it the proof of this? Compared in constant time.
    pub fn is_proven(&self, key: &[u8], proof: &[u8]) -> bool {
        self.signed(key).verify_slice(proof).is_ok()
    }

    fn signed(&self, key: &[u8]) -> Hmac<Sha256> {
        let mut hmac = match Hmac::<Sha256>::new_from_slice(key) {
            Ok(hmac) => hmac,
            Err(_) => unreachable!("HMAC takes keys of any length"),
        };
        hmac.update(DOMAIN);
        hmac.update(&self.index_group.to_le_bytes());
        let numbers = [
            self.epoch.0,
            self.attempt,
            self.request.ns.0,
            u64::from(self.request.principal),
            self.source_pid.0,
            self.source_id.0,
            self.destination_pid.0,
            self.victim.map_or(0, |id| id.0),
        ];
        for number in numbers {
            hmac.update(&number.to_le_bytes());
        }
        hmac.update(self.request.id.as_bytes());
        for name in [self.source_name, self.destination_name] {
            hmac.update(&(name.len() as u64).to_le_bytes());
            hmac.update(name.as_bytes());
        }
        hmac
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::NamespaceId;

    fn prepared() -> Prepared<'static> {
        Prepared {
            index_group: 1,
            epoch: Epoch(2),
            attempt: 3,
            request: RequestKey { principal: 4, ns: NamespaceId(5), id: Uuid::from_u128(6) },
            source_pid: PartitionId(7),
            source_name: "source",
            source_id: DirectoryId(8),
            destination_pid: PartitionId(9),
            destination_name: "destination",
            victim: None,
        }
    }

    #[test]
    fn a_proof_is_of_one_change_under_one_key() {
        let (this, proof) = (prepared(), prepared().proof(b"key"));
        assert!(this.is_proven(b"key", &proof));
        assert!(!this.is_proven(b"another key", &proof));
        assert!(!this.is_proven(b"key", &proof[1..]));
        assert!(!this.is_proven(b"key", b""));
        let key = this.request;
        let others = [
            Prepared { index_group: 2, ..this },
            Prepared { epoch: Epoch(3), ..this },
            Prepared { attempt: 4, ..this },
            Prepared { request: RequestKey { principal: 5, ..key }, ..this },
            Prepared { request: RequestKey { ns: NamespaceId(6), ..key }, ..this },
            Prepared { request: RequestKey { id: Uuid::from_u128(7), ..key }, ..this },
            Prepared { source_pid: PartitionId(8), ..this },
            Prepared { source_name: "sourced", destination_name: "estination", ..this },
            Prepared { source_id: DirectoryId(9), ..this },
            Prepared { destination_pid: PartitionId(10), ..this },
            Prepared { destination_name: "destinations", ..this },
            Prepared { victim: Some(DirectoryId(1)), ..this },
        ];
        for other in others {
            assert!(!other.is_proven(b"key", &proof), "{other:?}");
        }
    }
}
