//! Conversions between protobuf types and the project's own.

use std::time::Duration;

use mantle_types::{
    Caller, DirectoryId, Epoch, Error, ErrorCode, GroupId, NamespaceId, PartitionId, Permission, RequestKey, Result,
    error::ERROR_TABLE, message::DirectoryRecord,
};
use uuid::Uuid;

use crate::{
    model::{PreparedRename, RenameRequest},
    proto,
};

/// The number of an error on the wire: the digits of its SQLSTATE (`MT023` is 23).
pub fn wire_code(code: ErrorCode) -> u32 {
    code.row().sqlstate[2..].parse().expect("SQLSTATEs of the table end in digits (tested)")
}

/// An error as an outcome. The server adds the leader's address.
pub fn outcome_of(error: &Error) -> proto::Outcome {
    let detail = error.detail().to_owned();
    proto::Outcome { code: wire_code(error.code()), detail, leader_address: String::new() }
}

/// A result as an outcome: code 0 is success.
pub fn outcome_of_result<T>(result: &Result<T>) -> proto::Outcome {
    result.as_ref().err().map(outcome_of).unwrap_or_default()
}

/// An outcome as a result. A missing one, or a code of a newer server, is `internal`.
pub fn check_outcome(outcome: Option<&proto::Outcome>) -> Result<()> {
    let Some(outcome) = outcome else {
        return Err(Error::new(ErrorCode::Internal, "an index replica answered without an outcome"));
    };
    if outcome.code == 0 {
        return Ok(());
    }
    Err(Error::new(error_code(outcome.code), outcome.detail.clone()))
}

pub(crate) fn milliseconds(limit: Duration) -> u32 {
    u32::try_from(limit.as_millis()).unwrap_or(u32::MAX)
}

/// The error of a number on the wire.
pub(crate) fn error_code(number: u32) -> ErrorCode {
    let code = ERROR_TABLE.iter().map(|row| row.code).find(|code| wire_code(*code) == number);
    code.unwrap_or(ErrorCode::Internal)
}

impl From<&Caller> for proto::Caller {
    fn from(caller: &Caller) -> Self {
        Self { uid: caller.uid, gids: caller.gids.clone() }
    }
}

impl From<proto::Caller> for Caller {
    fn from(caller: proto::Caller) -> Self {
        Self { uid: caller.uid, gids: caller.gids }
    }
}

impl From<RequestKey> for proto::RequestKey {
    fn from(key: RequestKey) -> Self {
        Self { principal: key.principal, ns: key.ns.0, id: key.id.as_bytes().to_vec() }
    }
}

impl TryFrom<proto::RequestKey> for RequestKey {
    type Error = Error;

    fn try_from(key: proto::RequestKey) -> Result<Self> {
        let id = Uuid::from_slice(&key.id)
            .map_err(|_| Error::new(ErrorCode::InvalidArgument, "a request id has 16 bytes"))?;
        Ok(Self { principal: key.principal, ns: NamespaceId(key.ns), id })
    }
}

impl From<DirectoryRecord> for proto::Directory {
    fn from(r: DirectoryRecord) -> Self {
        let Permission { owner, group, mode } = r.permission;
        Self { id: r.id.0, pid: r.pid.0, name: r.name, version: r.version, owner, group, mode: u32::from(mode) }
    }
}

impl From<proto::Directory> for DirectoryRecord {
    fn from(d: proto::Directory) -> Self {
        let permission = Permission { owner: d.owner, group: d.group, mode: d.mode as u16 };
        let (pid, id) = (PartitionId(d.pid), DirectoryId(d.id));
        Self { ns: NamespaceId(0), pid, name: d.name, id, version: d.version, permission }
    }
}

impl From<RenameRequest> for proto::PrepareRenameRequest {
    fn from(r: RenameRequest) -> Self {
        Self {
            request: Some(r.request.into()),
            namespace: r.namespace,
            source: r.source,
            destination: r.destination,
            caller: Some((&r.caller).into()),
            lock_ms: r.lock_ms,
            overwrite: r.overwrite,
            remove: r.remove,
            group: GroupId::ONLY.0,
            below: r.below.into_iter().map(|id| id.0).collect(),
        }
    }
}

impl From<proto::PrepareRenameResponse> for PreparedRename {
    fn from(r: proto::PrepareRenameResponse) -> Self {
        Self {
            group: GroupId::ONLY,
            attempt: r.attempt,
            epoch: Epoch(r.epoch),
            ns: NamespaceId(r.ns),
            source_pid: PartitionId(r.source_pid),
            source_id: DirectoryId(r.source_id),
            source_version: r.source_version,
            destination_pid: PartitionId(r.destination_pid),
            replaced: (r.victim_id != 0).then_some(DirectoryId(r.victim_id)),
            proof: Some(r.proof).filter(|proof| !proof.is_empty()),
            source_parent: r.source_parent.map(Into::into),
            destination_parent: r.destination_parent.map(Into::into),
        }
    }
}

impl From<Permission> for proto::Permission {
    fn from(p: Permission) -> Self {
        Self { owner: p.owner, group: p.group, mode: u32::from(p.mode) }
    }
}

impl From<proto::Permission> for Permission {
    fn from(p: proto::Permission) -> Self {
        Self { owner: p.owner, group: p.group, mode: p.mode as u16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_survives_the_wire() {
        for row in ERROR_TABLE {
            let error = Error::new(row.code, "why");
            assert_eq!(check_outcome(Some(&outcome_of(&error))), Err(error));
        }
        assert_eq!(check_outcome(Some(&outcome_of_result(&Ok(())))), Ok(()));
        assert_eq!(check_outcome(None).unwrap_err().code(), ErrorCode::Internal);
    }

    #[test]
    fn request_keys_survive_the_wire() {
        let key = RequestKey { principal: 7, ns: NamespaceId(9), id: Uuid::from_u128(11) };
        assert_eq!(RequestKey::try_from(proto::RequestKey::from(key)), Ok(key));
        assert!(RequestKey::try_from(proto::RequestKey { id: vec![1], ..key.into() }).is_err());
    }

    /// docs/formats.md: gateways and IndexNodes of two releases talk to each other.
    #[test]
    fn messages_stay_as_they_are() {
        fn check<M: prost::Message + Default + PartialEq + std::fmt::Debug>(message: &M, golden: &str) {
            let bytes = message.encode_to_vec();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, golden, "{message:?}: a number or type of a field has changed: see docs/formats.md");
            assert_eq!(&M::decode(&bytes[..]).unwrap(), message);
        }
        let text = str::to_owned;
        let outcome = Some(proto::Outcome { code: 23, detail: text("d"), leader_address: text("a") });
        let request = RequestKey { principal: 7, ns: NamespaceId(9), id: Uuid::from_u128(11) };
        let caller = proto::Caller { uid: 1, gids: vec![2, 300] };
        let resolve = proto::ResolveRequest {
            number: 1,
            epoch: 2,
            timeout_ms: 3,
            paths: text("a/b"),
            path_bytes: vec![3],
            namespaces: vec![text("ns")],
            namespace_queries: vec![1],
            callers: vec![caller.clone()],
            caller_queries: vec![1],
            lineages: vec![proto::Lineage { source: 1, system_identifier: 2, timeline: 3 }],
            group: 4,
            reads_rows: true,
            settles: true,
        };
        check(
            &resolve,
            "0801100218032203612f622a010332026e733a010142070801120302ac024a01015206080110021803580460016801",
        );
        let resolved = proto::ResolveResponse {
            number: 1,
            outcome: outcome.clone(),
            epoch: 2,
            codes: vec![3],
            namespaces: vec![4],
            ids: vec![5],
            depths: vec![6],
            parent_ids: vec![7],
            owners: vec![8],
            groups: vec![9],
            modes: vec![10],
            versions: vec![11],
            crossed_locks: vec![true],
            rows: vec![12, 13],
            settled: true,
        };
        check(
            &resolved,
            "0801120808171201641a016118022201032a01043201053a01064201074a01085201095a010a62010b6a010172020c0d7801",
        );
        let prepare = proto::PrepareRenameRequest {
            request: Some(request.into()),
            namespace: text("ns"),
            source: vec![text("a"), text("b")],
            destination: vec![text("c")],
            caller: Some(caller),
            lock_ms: 1,
            overwrite: true,
            remove: true,
            group: 2,
            below: vec![1024, 5],
        };
        check(
            &prepare,
            "0a16080710091a100000000000000000000000000000000b12026e731a01611a01622201632a070801120302ac0230013801400148025203800805",
        );
        let prepared = proto::PrepareRenameResponse {
            outcome,
            attempt: 1,
            epoch: 2,
            ns: 3,
            source_pid: 4,
            source_id: 5,
            source_version: 6,
            destination_pid: 7,
            victim_id: 8,
            proof: vec![9],
            source_parent: Some(proto::Permission { owner: 1, group: 2, mode: 0o777 }),
            destination_parent: Some(proto::Permission { owner: 3, group: 4, mode: 5 }),
        };
        let answers = vec![proto::NumberedPrepared { number: 300, answer: Some(prepared.clone()) }];
        let numbered = "0a3308ac02122e0a0808171201641a0161100118022003280430053806400748085201095a070801100218ff036206080310041805";
        check(&proto::PrepareRenamesResponse { answers }, numbered);
        let begin = vec![proto::NumberedPrepare { number: 300, request: Some(proto::PrepareRenameRequest::default()) }];
        check(&proto::PrepareRenamesRequest { begin, end: vec![7] }, "0a0508ac021200120107");
        check(
            &prepared,
            "0a0808171201641a0161100118022003280430053806400748085201095a070801100218ff036206080310041805",
        );
        let what = Some(proto::await_request::What::Request(request.into()));
        check(
            &proto::AwaitRequest { timeout_ms: 1, source: 2, group: 3, what },
            "0a16080710091a100000000000000000000000000000000b180120022803",
        );
        let what = Some(proto::await_request::What::Lsn(4));
        let position = proto::AwaitRequest { timeout_ms: 1, source: 2, group: 3, what };
        check(&position, "1004180120022803");
        let begin = vec![proto::NumberedAwait { number: 300, request: Some(position) }];
        check(&proto::AwaitsRequest { begin, end: vec![7, 300] }, "0a0d08ac0212081004180120022803120307ac02");
        let outcome = Some(proto::Outcome { code: 23, ..proto::Outcome::default() });
        let answer = Some(proto::AwaitResponse { outcome, applied_index: 5 });
        let answers = vec![proto::NumberedAnswer { number: 300, answer }];
        check(&proto::AwaitsResponse { answers }, "0a0b08ac0212060a0208171005");
    }
}
