//! Emits the change stream: one logical message for all directory changes of a call.
//!
//! Invariant (P1): the message is emitted on the node that writes the rows, and in the same transaction.

use mantle_types::{
    DirectoryId, NamespaceId, PartitionId, Permission, RequestKey,
    message::{Cause, DirectoryOp, DirectoryRecord, MESSAGE_PREFIX, encode},
};
use pgrx::prelude::*;
use uuid::Uuid;

use super::{batch::mutation_fault_code, name::stem};
use crate::{fault::Fault, postgres::logical_message::log_message};

/// A directory as the index knows it.
pub fn record(ns: i64, pid: i64, name: &str, id: i64, version: i64, permission: [i32; 3]) -> DirectoryRecord {
    let [owner, group, mode] = permission;
    DirectoryRecord {
        ns: NamespaceId::from(ns),
        pid: PartitionId::from(pid),
        name: stem(name).to_owned(),
        id: DirectoryId::from(id),
        version: version as u64,
        permission: Permission { owner: owner as u32, group: group as u32, mode: mode as u16 },
    }
}

/// The request that caused a change; `attempt` is 0 except for renames.
pub fn cause(principal: i32, ns: i64, request: &pgrx::Uuid, attempt: i64) -> Cause {
    let id = Uuid::from_bytes(*request.as_bytes());
    Cause {
        request: RequestKey { principal: principal as u32, ns: NamespaceId::from(ns), id },
        attempt: attempt as u64,
    }
}

/// Emits the message of a call; none if nothing changed.
pub fn emit(ops: &[DirectoryOp]) {
    if !ops.is_empty() {
        log_message(MESSAGE_PREFIX, &encode(ops));
    }
}

/// Emits `mantle.directory_change` rows, given as parallel arrays. `removed` is true for a removal, NULL for one part
/// of a rename across nodes. Names have their slash. A NULL request is a change without a cause (import, pruning).
/// Requests belong to the directories' namespaces unless `cause_ns` is given (0: the creation or removal of a
/// namespace).
#[pg_extern(volatile)]
#[allow(clippy::too_many_arguments)]
fn emit_directories(
    cause_ns: Option<i64>,
    attempt: i64,
    removed: Array<bool>,
    ns: Array<i64>,
    pid: Array<i64>,
    name: Array<&str>,
    id: Array<i64>,
    version: Array<i64>,
    owner: Array<i32>,
    grp: Array<i32>,
    mode: Array<i32>,
    principal: Option<Array<i32>>,
    request: Option<Array<pgrx::Uuid>>,
) -> Fault {
    let fault = mutation_fault_code();
    if fault.is_some() {
        return fault;
    }
    let (mut ns, mut id, mut version, mut owner) = (ns.iter(), id.iter(), version.iter(), owner.iter());
    let (mut grp, mut mode, mut removed) = (grp.iter(), mode.iter(), removed.iter());
    let mut principal = principal.iter().flat_map(|p| p.iter());
    let mut request = request.iter().flat_map(|r| r.iter());
    let mut ops = Vec::new();
    for (pid, name) in pid.iter().zip(name.iter()) {
        let ns = next(&mut ns, "ns");
        let (pid, name) = (need(pid, "pid"), need(name, "name"));
        let permission = [next(&mut owner, "owner"), next(&mut grp, "grp"), next(&mut mode, "mode")];
        let record = record(ns, pid, name, next(&mut id, "id"), next(&mut version, "version"), permission);
        let principal = principal.next().flatten();
        let request = request.next().flatten();
        let cause = request.map(|id| cause(need(principal, "principal"), cause_ns.unwrap_or(ns), &id, attempt));
        ops.push(match removed.next().flatten() {
            Some(true) => DirectoryOp::Remove { record, cause },
            Some(false) => DirectoryOp::Put { record, cause },
            None => DirectoryOp::PartDone { pid: record.pid, cause: need(cause, "request") },
        });
    }
    emit(&ops);
    None
}

fn next<T>(values: &mut impl Iterator<Item = Option<T>>, what: &str) -> T {
    need(values.next().flatten(), what)
}

/// A NULL is a mistake of the calling SQL function, not of a client.
fn need<T>(value: Option<T>, what: &str) -> T {
    value.unwrap_or_else(|| pgrx::error!("mantle.emit_directories: {what} is NULL or missing"))
}
