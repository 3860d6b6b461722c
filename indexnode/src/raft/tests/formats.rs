//! Golden bytes of what the Raft shell writes and sends (docs/formats.md). Most of it are openraft's types in postcard, so these
//! tests also tell whether another openraft can read our disks and run beside this one.

use std::{collections::BTreeMap, fmt::Debug, fs};

use bytes::Bytes;
use mantle_types::Epoch;
use openraft::{
    EntryPayload, Membership,
    raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse},
    storage::{RaftLogStorage as _, RaftLogStorageExt as _},
    vote::RaftLeaderId as _,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    index::command::Command,
    proto::peer::{
        Destination, Fingerprint, JoinRequest, LogPosition, Promise, RaftMessage, ReadIndexRequest, SnapshotPart,
    },
    raft::{
        Proposal, TypeConfig, durable,
        identity::Identity,
        log::LogStore,
        network::{decode, encode},
        types::{CommittedLeaderId, Entry, LogId, SnapshotMeta, StoredMembership, Vote},
    },
};

const WHY: &str =
    "this format has changed: give it a new version, keep reading the old one, and tell so in docs/formats.md";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The value as bytes, which must say as much as the value when they are read.
fn bytes_of<T: Serialize + DeserializeOwned>(value: &T) -> String {
    let bytes = encode(value).unwrap();
    let read: T = decode(&bytes).unwrap();
    assert_eq!(encode(&read).unwrap(), bytes);
    hex(&bytes)
}

fn log_id(index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(3, 7), index)
}

fn entry(index: u64) -> Entry {
    let command = Command::RebuildBegin { epoch: Epoch(4), is_diverged: true };
    Entry { log_id: log_id(index), payload: EntryPayload::Normal(Proposal::encode(&command)) }
}

fn membership() -> Membership<u64, openraft::BasicNode> {
    let nodes = BTreeMap::from([(7, openraft::BasicNode::new("a:1")), (8, openraft::BasicNode::new("b:2"))]);
    Membership::new(vec![[7].into()], nodes).unwrap()
}

#[test]
fn raft_messages_stay_as_they_are() {
    let is = |bytes: String, golden: &str, what: &str| assert_eq!(bytes, golden, "{what}: {WHY}");
    is(bytes_of(&entry(300)), "0307ac020103030401", "an entry");
    is(bytes_of::<Entry>(&Entry { log_id: log_id(1), payload: EntryPayload::Blank }), "03070100", "a blank entry");
    let payload = EntryPayload::Membership(membership());
    is(
        bytes_of::<Entry>(&Entry { log_id: log_id(1), payload }),
        "03070102010107020703613a310803623a32",
        "a membership",
    );
    let append = AppendEntriesRequest::<TypeConfig> {
        vote: Vote::new_committed(3, 7),
        prev_log_id: Some(log_id(299)),
        entries: vec![entry(300)],
        leader_commit: Some(log_id(298)),
    };
    is(bytes_of(&append), "030701010307ab02010307ac020103030401010307aa02", "an append");
    is(bytes_of(&AppendEntriesResponse::<TypeConfig>::Success), "00", "its answer");
    let vote = VoteRequest::<TypeConfig>::new(Vote::new(4, 8), Some(log_id(300)));
    is(bytes_of(&vote), "040800010307ac0200", "a vote's request");
    is(
        bytes_of(&VoteResponse::<TypeConfig>::new(Vote::new(4, 8), Some(log_id(300)), true)),
        "04080001010307ac02",
        "a vote",
    );
    let last_membership = StoredMembership::new(Some(log_id(1)), membership());
    let meta = SnapshotMeta { last_log_id: Some(log_id(300)), last_membership };
    is(bytes_of(&meta), "010307ac0201030701010107020703613a310803623a3200", "a snapshot's metadata");
}

#[tokio::test]
async fn segments_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = LogStore::open(folder.path()).unwrap();
    log.blocking_append([entry(0), entry(1)]).await.unwrap();
    log.save_vote(&Vote::new_committed(3, 7)).await.unwrap();
    log.save_committed(Some(log_id(1))).await.unwrap();
    let file = |name: &str| hex(&fs::read(folder.path().join(name)).unwrap());
    assert_eq!(
        file("00000000000000000000.seg"),
        "4d524c31080000006944090803070001030304014d524c3108000000cc9755c30307010103030401",
        "a segment: {WHY}"
    );
    assert_eq!(file("vote"), "1ac141c5030701", "the vote: {WHY}");
    assert_eq!(file("committed"), "4d524c3104000000feaed46301030701", "the committed position: {WHY}");
    log.purge(log_id(0)).await.unwrap();
    assert_eq!(file("purged"), "8cf146b2030700", "the purged position: {WHY}");
    let identity = Identity { node_id: 9, cluster_id: Some("c".to_owned()), is_founder: true };
    durable::write(&folder.path().join("identity"), &identity).unwrap();
    assert_eq!(file("identity"), "cc909b4b0901016301", "the identity: {WHY}");
}

#[test]
fn messages_between_replicas_stay_as_they_are() {
    fn check<M: prost::Message + Default + PartialEq + Debug>(message: &M, golden: &str) {
        let bytes = message.encode_to_vec();
        assert_eq!(hex(&bytes), golden, "{message:?}: {WHY}");
        assert_eq!(&M::decode(&bytes[..]).unwrap(), message);
    }
    let to = Some(Destination { cluster_id: "c".to_owned(), node_id: 7, group: 2 });
    let log = Some(LogPosition { term: 3, leader_id: 7, index: 300 });
    let promise = Promise { node_id: 7, term: 4, log, voted_for: 0 };
    check(&Promise { voted_for: 300, ..promise }, "080710041a070803100718ac0220ac02");
    check(
        &RaftMessage {
            to: to.clone(),
            body: Bytes::from_static(&[1, 2]),
            promises: vec![promise],
            is_unconfirmed: true,
        },
        "0a070a016310071802120201021a0d080710041a070803100718ac022001",
    );
    let fingerprint = Some(Fingerprint { index: 300, history: 1, epoch: 4, lineage: 2, digest: 3 });
    let read_index = ReadIndexRequest { cluster_id: "c".to_owned(), group: 2, fingerprint, settles: false };
    check(&read_index, "0a016310021a2008ac021101000000000000001804210200000000000000290300000000000000");
    check(&ReadIndexRequest { fingerprint: None, settles: true, ..read_index }, "0a016310022001");
    check(
        &SnapshotPart { to, vote: Bytes::from_static(&[3]), data: Bytes::from_static(&[4]) },
        "0a070a0163100718021201031a0104",
    );
    let (cluster_id, address) = ("c".to_owned(), "a:1".to_owned());
    check(&JoinRequest { cluster_id, node_id: 7, address, as_learner: true, group: 2 }, "0a016310071a03613a3120012802");
}
