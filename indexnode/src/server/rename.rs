//! Preparing and releasing directory renames, on the leader.

use std::sync::Arc;

use mantle_index_client::proto::{PrepareRenameRequest, PrepareRenameResponse, ReleaseRenameRequest};
use mantle_types::{
    Caller, DirectoryId, Error, ErrorCode, GroupId, NamespaceId, Prepared, RequestKey, Result, name::check_name,
};

use super::request::outcome_of;
use crate::{
    groups::Groups,
    index::command::{Command, Prepare, PrepareByRule, PreparedRename},
    membership::rules,
    node::{Leadership, Node},
    postgres::upstream::Database,
    source::rename_locks::abort_rename,
};

/// Answers a request to prepare a rename.
pub async fn answer(groups: &Groups, request: PrepareRenameRequest) -> PrepareRenameResponse {
    let group = GroupId(request.group);
    let prepared = async { prepare(&groups.node(group)?, &groups.replica(group)?.database, request).await };
    let result = prepared.await;
    let outcome = Some(outcome_of(groups, group, &result));
    PrepareRenameResponse { outcome, ..result.unwrap_or_default() }
}

/// Prepares a rename: locks its source. An older attempt of the same request is aborted first.
async fn prepare(
    node: &Arc<Node>,
    database: &Database,
    request: PrepareRenameRequest,
) -> Result<PrepareRenameResponse> {
    let leadership = node.leadership().ok_or_else(|| node.not_leader())?;
    if node.is_in_doubt(&leadership) {
        return Err(Error::new(
            ErrorCode::IndexUnavailable,
            "the leader is reading from PostgreSQL what its log may lack",
        ));
    }
    let below = request.below.iter().map(|id| DirectoryId(*id)).collect();
    let prepare = check(node, request)?;
    // Read the key first: without it a lock would be useless.
    let key = prepare_key(node, database).await?;
    let older = node.state.read().index.lock_of(&prepare.request);
    if let Some(older) = older {
        abandon(node, &leadership, database, prepare.request, older.attempt).await?;
    }
    let signed = prepare.clone();
    let rule = rules::common(node).await;
    let prepared = node.propose_prepare(leadership, PrepareByRule { prepare, rule, below }).await?;
    let proof = key.map(|key| sign(node, &signed, &prepared, &key)).unwrap_or_default();
    Ok(response(&prepared, proof))
}

/// The key with which the group signs prepared renames; `None` if the database has none yet.
async fn prepare_key(node: &Node, database: &Database) -> Result<Option<Vec<u8>>> {
    let epoch = node.state.read().index.epoch();
    let read = || {
        let database = database.clone();
        async move { database.connect().await?.prepare_key().await }
    };
    node.prepare_key.get(epoch, read).await.map_err(|error| {
        tracing::warn!(%error, "cannot read the key that renames are signed with");
        Error::new(ErrorCode::DatabaseUnavailable, "the key that signs renames cannot be read now")
    })
}

fn sign(node: &Node, prepare: &Prepare, prepared: &PreparedRename, key: &[u8]) -> Vec<u8> {
    let signed = Prepared {
        index_group: node.group,
        epoch: prepared.epoch,
        attempt: prepared.attempt,
        request: RequestKey { ns: prepared.ns, ..prepare.request },
        source_pid: prepared.source_pid,
        source_name: prepare.source.last().map_or("", String::as_str),
        source_id: prepared.source_id,
        destination_pid: prepared.destination_pid,
        destination_name: prepare.destination.last().map_or("", String::as_str),
        replaced: prepared.replaced,
    };
    signed.proof(key).to_vec()
}

pub async fn release(node: &Node, database: &Database, request: ReleaseRenameRequest) -> Result<()> {
    let leadership = node.leadership().ok_or_else(|| node.not_leader())?;
    let key = RequestKey::try_from(request.request.unwrap_or_default())?;
    abandon(node, &leadership, database, key, request.attempt).await
}

/// Writes the abort record, then releases the lock (P20).
async fn abandon(
    node: &Node,
    leadership: &Leadership,
    database: &Database,
    request: RequestKey,
    attempt: u64,
) -> Result<()> {
    if !abort_rename(node, database, &request, attempt).await? {
        return Err(Error::new(ErrorCode::AttemptSuperseded, "an earlier attempt of this rename is committed"));
    }
    node.propose_as(leadership, &Command::Release { request, attempt }).await.map(drop)
}

fn check(node: &Node, request: PrepareRenameRequest) -> Result<Prepare> {
    let invalid = |why: &str| Error::new(ErrorCode::InvalidArgument, why);
    let key = request.request.ok_or_else(|| invalid("the request key is missing"))?;
    let mut key = RequestKey::try_from(key)?;
    if request.source.is_empty() || request.destination.is_empty() != request.remove {
        return Err(invalid("a namespace's root can neither be moved or removed nor be a destination"));
    }
    request.source.iter().chain(&request.destination).try_for_each(|name| check_name(name))?;
    let caller = Caller::from(request.caller.ok_or_else(|| invalid("the caller is missing"))?);
    let root = node.state.read().index.resolve(&request.namespace, &[], &Caller { uid: 0, gids: Vec::new() });
    root.outcome.map_err(Error::from)?;
    if key.ns != NamespaceId(0) && key.ns != root.ns {
        return Err(invalid("the request key is of another namespace"));
    }
    key.ns = root.ns;
    Ok(Prepare {
        request: key,
        namespace: request.namespace,
        source: request.source,
        destination: request.destination,
        caller,
        overwrite: request.overwrite,
        remove: request.remove,
        lock_ms: request.lock_ms.clamp(1, node.config.rename.lock_ms_max),
    })
}

fn response(prepared: &PreparedRename, proof: Vec<u8>) -> PrepareRenameResponse {
    PrepareRenameResponse {
        outcome: None,
        attempt: prepared.attempt,
        epoch: prepared.epoch.0,
        ns: prepared.ns.0,
        source_pid: prepared.source_pid.0,
        source_id: prepared.source_id.0,
        source_version: prepared.source_version,
        destination_pid: prepared.destination_pid.0,
        victim_id: prepared.replaced.map_or(0, |id| id.0),
        proof,
        source_parent: Some(prepared.source_parent.into()),
        destination_parent: prepared.destination_parent.map(Into::into),
    }
}
