//! The change stream: one logical message for the directory changes of a call, emitted where and when their rows are
//! written (P1). Written with `LogLogicalMessage`, not the SQL function: EXECUTE on that is revoked, so that
//! nobody else can forge the stream (P6). Transactional: it appears at commit, never after a rollback.

use mantle_types::{
    DirectoryId, NamespaceId, PartitionId, Permission, RequestKey,
    message::{Cause, DirectoryOp, DirectoryRecord, MESSAGE_PREFIX, encode},
};
use pgrx::prelude::*;
use uuid::Uuid;

use super::batch::mutation_fault;
use crate::{
    fault::{Fault, sqlstate},
    postgres::logical_message::log_message,
};

/// A directory just made, by a request.
pub struct NewDirectory<'a> {
    /// The namespace.
    pub ns: i64,
    /// Where.
    pub pid: i64,
    /// With its slash.
    pub name: &'a str,
    /// The new id.
    pub id: i64,
    /// Owner, group and mode.
    pub owner: i32,
    /// See `owner`.
    pub grp: i32,
    /// See `owner`.
    pub mode: i32,
    /// Who asked for it, under which request id.
    pub principal: i32,
    /// See `principal`.
    pub request: pgrx::Uuid,
}

/// Emits the message of a call that made directories.
pub fn emit_new<'a>(directories: impl Iterator<Item = NewDirectory<'a>>) {
    let ops: Vec<DirectoryOp> = directories
        .map(|new| {
            let ns = NamespaceId::from(new.ns);
            let record = DirectoryRecord {
                ns,
                pid: PartitionId::from(new.pid),
                name: new.name.strip_suffix('/').unwrap_or(new.name).to_owned(),
                id: DirectoryId::from(new.id),
                version: 1,
                permission: Permission { owner: new.owner as u32, group: new.grp as u32, mode: new.mode as u16 },
            };
            let id = Uuid::from_bytes(*new.request.as_bytes());
            let request = RequestKey { principal: new.principal as u32, ns, id };
            DirectoryOp::Put { record, cause: Some(Cause { request, attempt: 0 }) }
        })
        .collect();
    if !ops.is_empty() {
        log_message(MESSAGE_PREFIX, &encode(&ops));
    }
}

/// Emits `mantle.directory_change` rows, given as parallel arrays. `removed` says which are removals, NULL
/// that this is half of a change across nodes; a name has its trailing slash; a NULL request is a change without a cause (import, pruning). Requests belong to the directories' own
/// namespaces unless `cause_ns` is given (0: a namespace's own creation and removal).
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
    if let Some(code) = mutation_fault() {
        return Some(sqlstate(code));
    }
    let (mut ns, mut id, mut version, mut owner) = (ns.iter(), id.iter(), version.iter(), owner.iter());
    let (mut grp, mut mode, mut removed) = (grp.iter(), mode.iter(), removed.iter());
    let mut principal = principal.iter().flat_map(|p| p.iter());
    let mut request = request.iter().flat_map(|r| r.iter());
    let mut ops = Vec::new();
    for (pid, name) in pid.iter().zip(name.iter()) {
        let name = need(name, "name");
        let ns = need(ns.next().flatten(), "ns");
        let record = DirectoryRecord {
            ns: NamespaceId::from(ns),
            pid: PartitionId::from(need(pid, "pid")),
            name: name.strip_suffix('/').unwrap_or(name).to_owned(),
            id: DirectoryId::from(need(id.next().flatten(), "id")),
            version: need(version.next().flatten(), "version") as u64,
            permission: Permission {
                owner: need(owner.next().flatten(), "owner") as u32,
                group: need(grp.next().flatten(), "grp") as u32,
                mode: need(mode.next().flatten(), "mode") as u16,
            },
        };
        let principal = principal.next().flatten();
        let cause = request.next().flatten().map(|uuid| Cause {
            request: RequestKey {
                principal: need(principal, "principal") as u32,
                ns: NamespaceId::from(cause_ns.unwrap_or(ns)),
                id: Uuid::from_bytes(*uuid.as_bytes()),
            },
            attempt: attempt as u64,
        });
        ops.push(match removed.next().flatten() {
            Some(true) => DirectoryOp::Remove { record, cause },
            Some(false) => DirectoryOp::Put { record, cause },
            None => DirectoryOp::Half { pid: record.pid, cause: need(cause, "request") },
        });
    }
    if !ops.is_empty() {
        log_message(MESSAGE_PREFIX, &encode(&ops));
    }
    None
}

/// A NULL here is a fault of the calling SQL function, not of a client.
fn need<T>(value: Option<T>, what: &str) -> T {
    value.unwrap_or_else(|| pgrx::error!("mantle.emit_directories: {what} is NULL or missing"))
}
