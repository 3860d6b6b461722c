//! Proof that an index group has prepared a change of directories: it resolved the paths, found no loop and no other lock,
//! and locked the source (P31). PostgreSQL cannot see the index's locks. So the group's leader signs what it prepared with a
//! key that PostgreSQL keeps for it (`mantle.prepare_key`), and PostgreSQL carries out nothing else. Without the proof any
//! caller of `mantle.rename_directory` could make up an attempt and move a directory below itself.

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::{DirectoryId, Epoch, GroupId, PartitionId, RequestKey};

/// Length of a proof, in bytes.
pub const PROOF_BYTES: usize = 32;

/// Begins what is signed, so that nothing else under the same key passes for it. Names the version of the field list.
const DOMAIN: &[u8] = b"mantle prepared 1";

/// A prepared change. Names are without slashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Prepared<'a> {
    pub index_group: GroupId,
    /// The group's epoch at the prepare.
    pub epoch: Epoch,
    /// Log index of the prepare; above 2^40 the moves of the namespace.
    pub attempt: u64,
    pub request: RequestKey,
    pub source_pid: PartitionId,
    pub source_name: &'a str,
    /// The directory that is locked.
    pub source_id: DirectoryId,
    /// The destination's partition; the trash for a removal.
    pub destination_pid: PartitionId,
    /// The destination's name; empty for a removal.
    pub destination_name: &'a str,
    /// The empty directory that the rename replaces.
    pub replaced: Option<DirectoryId>,
}

impl Prepared<'_> {
    /// HMAC-SHA-256 over all fields; the byte layout is in docs/formats.md.
    pub fn proof(&self, key: &[u8]) -> [u8; PROOF_BYTES] {
        self.signed(key).finalize().into_bytes().into()
    }

    /// Compares in constant time.
    pub fn is_proven(&self, key: &[u8], proof: &[u8]) -> bool {
        self.signed(key).verify_slice(proof).is_ok()
    }

    fn signed(&self, key: &[u8]) -> Hmac<Sha256> {
        let mut hmac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
        hmac.update(DOMAIN);
        hmac.update(&self.index_group.0.to_le_bytes());
        let numbers = [
            self.epoch.0,
            self.attempt,
            self.request.ns.0,
            u64::from(self.request.principal),
            self.source_pid.0,
            self.source_id.0,
            self.destination_pid.0,
            self.replaced.map_or(0, |id| id.0),
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
            index_group: GroupId(1),
            epoch: Epoch(2),
            attempt: 3,
            request: RequestKey { principal: 4, ns: NamespaceId(5), id: Uuid::from_u128(6) },
            source_pid: PartitionId(7),
            source_name: "source",
            source_id: DirectoryId(8),
            destination_pid: PartitionId(9),
            destination_name: "destination",
            replaced: None,
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
            Prepared { index_group: GroupId(2), ..this },
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
            Prepared { replaced: Some(DirectoryId(1)), ..this },
        ];
        for other in others {
            assert!(!other.is_proven(b"key", &proof), "{other:?}");
        }
    }

    /// docs/formats.md: PostgreSQL checks what an IndexNode of another release signed. A change needs another [`DOMAIN`].
    #[test]
    fn proofs_stay_as_they_are() {
        let signed = Prepared { replaced: Some(DirectoryId(10)), ..prepared() };
        let hex: String = signed.proof(b"key").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex, "04a7640398f15628fdb508f5b4d7fff95fa673f876b2a9e80a1d3c7c4abbd3e9",
            "the proof has changed: see docs/formats.md"
        );
    }
}
