//! Proofs that an index group has prepared a rename, for `sql/steps/prepare_fault.sql`.
//!
//! PostgreSQL does not see the index's locks. So the leader signs what it prepared, and the rename's transaction checks
//! that.

use mantle_types::{DirectoryId, Epoch, NamespaceId, PartitionId, Prepared, RequestKey};
use pgrx::prelude::*;

use super::name::stem;

/// Converts SQL's fields of a rename; `victim_id` 0 means none.
#[expect(clippy::too_many_arguments, reason = "the parameters of mantle.rename_directory")]
fn prepared<'a>(
    index_group: i32,
    epoch: i64,
    attempt: i64,
    principal: i32,
    ns: i64,
    request: pgrx::Uuid,
    source: (i64, &'a str, i64),
    destination: (i64, &'a str, i64),
) -> Prepared<'a> {
    let replaced = Some(destination.2).filter(|id| *id != 0).map(|id| DirectoryId(id as u64));
    Prepared {
        index_group: index_group.into(),
        epoch: Epoch(epoch as u64),
        attempt: attempt as u64,
        request: RequestKey {
            principal: principal as u32,
            ns: NamespaceId(ns as u64),
            id: uuid::Uuid::from_bytes(*request.as_bytes()),
        },
        source_pid: PartitionId(source.0 as u64),
        source_name: stem(source.1),
        source_id: DirectoryId(source.2 as u64),
        destination_pid: PartitionId(destination.0 as u64),
        destination_name: stem(destination.1),
        replaced,
    }
}

/// Whether `proof` proves this rename under the key. NULL if any argument is.
#[expect(clippy::too_many_arguments, reason = "the parameters of mantle.rename_directory")]
#[pg_extern(immutable)]
pub fn is_proven(
    key: &[u8],
    proof: &[u8],
    index_group: i32,
    epoch: i64,
    attempt: i64,
    principal: i32,
    ns: i64,
    request: pgrx::Uuid,
    src_pid: i64,
    src_name: &str,
    src_id: i64,
    dst_pid: i64,
    dst_name: &str,
    victim_id: i64,
) -> bool {
    let (source, destination) = ((src_pid, src_name, src_id), (dst_pid, dst_name, victim_id));
    prepared(index_group, epoch, attempt, principal, ns, request, source, destination).is_proven(key, proof)
}

/// Proves a rename under the key. NULL if any argument is.
#[expect(clippy::too_many_arguments, reason = "the parameters of mantle.rename_directory")]
#[pg_extern(immutable)]
fn proof(
    key: &[u8],
    index_group: i32,
    epoch: i64,
    attempt: i64,
    principal: i32,
    ns: i64,
    request: pgrx::Uuid,
    src_pid: i64,
    src_name: &str,
    src_id: i64,
    dst_pid: i64,
    dst_name: &str,
    victim_id: i64,
) -> Vec<u8> {
    let (source, destination) = ((src_pid, src_name, src_id), (dst_pid, dst_name, victim_id));
    prepared(index_group, epoch, attempt, principal, ns, request, source, destination).proof(key).to_vec()
}
