//! Whom replicas believe: members, and nobody whose term is far ahead; and how a group is healed that believed a forger.

use std::fs;

use bytes::Bytes;
use mantle_index_client::{
    Status,
    proto::{self as index, directories_request::What, index_client::IndexClient},
};
use mantle_indexnode::{
    index::command::{Command, SourceBatch, SourceId, StreamTransaction},
    proto::peer::{self, peer_client::PeerClient},
    raft::{TypeConfig, types::Vote},
};
use mantle_types::{
    Lsn,
    message::{DirectoryOp, DirectoryRecord},
    permission::Permission,
};
use openraft::raft::{TransferLeaderRequest, VoteRequest};
use tokio::net::TcpListener;
use tonic::Code;

use crate::{
    scene::{GATEWAY, HOST, NAMESPACE, PEER, Scene, append, channel, metrics, value},
    support::eventually,
};

/// A peer's certificate is for a host: one that was stolen elsewhere speaks for no member.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_believe_members_only() {
    let scene = Scene::strict().await;
    let leader = scene.group.leader().await;
    let elsewhere = scene.tls("elsewhere", ("mantle-peer", "127.0.0.2"));
    let member = scene.tls("member", PEER);
    for i in 0..scene.group.replicas.len() {
        let status = scene.group.status(i).await.unwrap();
        let address = scene.group.replicas[i].address.as_str();
        let mut stranger = PeerClient::new(channel(address, Some(elsewhere.clone())));
        // In the name of nobody, of the leader, and as a leader of the next term.
        for (term, node) in
            [(status.term + 1, 12_345), (status.term, status.leader_id), (status.term + 1, status.node_id)]
        {
            let message = append(&status, (term, node), None);
            let vote = VoteRequest::<TypeConfig>::new(Vote::new(term, node), None);
            let body = postcard::to_stdvec(&vote).unwrap().into();
            let vote = peer::RaftMessage { body, ..message.clone() };
            let vote_of_snapshot = postcard::to_stdvec(&Vote::new_committed(term, node)).unwrap();
            let part = peer::SnapshotPart { to: message.to.clone(), vote: vote_of_snapshot.into(), data: Bytes::new() };
            let transfer =
                TransferLeaderRequest::<TypeConfig>::new(Vote::new_committed(term, node), status.node_id, None);
            let transfer = postcard::to_stdvec(&transfer).unwrap().into();
            let transfer = peer::RaftMessage { body: transfer, ..message.clone() };
            let appended = async {
                let answers = stranger.clone().appends(tokio_stream::iter([message.clone()])).await?;
                answers.into_inner().message().await
            };
            let appended = appended.await.map(drop);
            for refused in [
                appended,
                stranger.append(message).await.map(drop),
                stranger.vote(vote.clone()).await.map(drop),
                stranger.pre_vote(vote).await.map(drop),
                stranger.transfer_leader(transfer).await.map(drop),
                stranger.install_snapshot(tokio_stream::iter([part])).await.map(drop),
            ] {
                assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied, "replica {i}, term {term}");
            }
        }
        // A term that no election reaches would be the last.
        let mut known = PeerClient::new(channel(address, Some(member.clone())));
        for term in [u64::MAX, u64::MAX - 1, status.term + (1 << 33)] {
            let refused = known.append(append(&status, (term, status.leader_id), None)).await.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        }
    }
    // The leader sends its state to a configured address only, and to the host of the certificate.
    let listener = TcpListener::bind((HOST, 0)).await.unwrap();
    let chosen = listener.local_addr().unwrap().to_string();
    let (status, address) = (scene.group.status(leader).await.unwrap(), &scene.group.replicas[leader].address);
    let other = scene.group.replicas[(leader + 1) % 3].address.clone();
    for (tls, address_of_joiner, as_learner) in
        [(&member, &chosen, true), (&member, &chosen, false), (&elsewhere, &other, false)]
    {
        let request = peer::JoinRequest {
            cluster_id: status.cluster_id.clone(),
            node_id: 666,
            address: address_of_joiner.clone(),
            as_learner,
            group: 1,
        };
        let refused = PeerClient::new(channel(address, Some(tls.clone()))).join(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    let dialled = tokio::time::timeout(std::time::Duration::from_millis(500), listener.accept()).await;
    assert!(dialled.is_err(), "the leader has connected to the caller's address");
    let after = scene.group.settled().await;
    assert_eq!(after[leader].term, status.term, "no message has moved the group");
    scene.end().await;
}

/// A member's answer is believed no more than its messages: one stolen certificate, even a learner's, would stop the group.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_believe_no_answer_whose_term_is_too_high() {
    let mut scene = Scene::strict().await;
    let leader = scene.group.leader().await;
    let forger = &mut scene.group.replicas[(leader + 1) % 3];
    forger.kill();
    forger.failpoint = Some("AnswerHighestTerm");
    forger.start();
    let address = scene.group.replicas[leader].http_address.clone();
    eventually("an answer whose term is noticed", || async {
        let page = metrics(&address).await;
        (value(&page, "mantle_index_raft_term_jumps_total{group=\"1\"}") > Some(0.0)).then_some(())
    })
    .await;
    let ns = scene.database.create_namespace(NAMESPACE).await;
    let (_, key) = scene.database.mkdir(ns, ns, "d").await;
    scene.group.client.await_request(key, std::time::Duration::from_secs(20)).await.unwrap();
    let status = scene.group.status(leader).await.unwrap();
    assert!(status.term < 1000, "term {}", status.term);
    scene.end().await;
}

/// A member may not tell another what it has promised in a term that no election reaches: it would discard its log.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_believe_no_promise_whose_term_is_too_high() {
    let scene = Scene::strict().await;
    let member = scene.tls("member", PEER);
    let before = scene.group.settled().await;
    let followers = scene.group.replicas.iter().zip(&before).filter(|(_, status)| status.role != "leader");
    for (replica, status) in followers {
        let mut known = PeerClient::new(channel(&replica.address, Some(member.clone())));
        let log = peer::LogPosition { term: u64::MAX, leader_id: status.leader_id, index: u64::MAX };
        let of_vote = peer::Promise { node_id: status.node_id, term: u64::MAX, voted_for: 1, log: None };
        let of_entries = peer::Promise { node_id: status.node_id, term: 0, voted_for: 0, log: Some(log) };
        for promise in [of_vote, of_entries] {
            let message = append(status, (status.term, status.leader_id), None);
            // The leader's heartbeat is answered; a replica that believed the promise would refuse it.
            known.append(peer::RaftMessage { promises: vec![promise], ..message }).await.unwrap();
        }
        let page = metrics(&replica.http_address).await;
        assert!(value(&page, "mantle_index_raft_term_jumps_total{group=\"1\"}") >= Some(2.0), "{page}");
    }
    let ids = |all: &[Status]| all.iter().map(|status| status.node_id).collect::<Vec<_>>();
    assert_eq!(ids(&scene.group.settled().await), ids(&before), "nobody has joined anew");
    scene.end().await;
}

/// docs/runbooks.md, "An index that was poisoned": what a forger has put into the log is gone, and what PostgreSQL has is back.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_are_healed_after_forged_messages() {
    let mut scene = Scene::new().await;
    // Without certificates, and without the bound on terms, as in the releases before both.
    scene.group.replicas.iter_mut().for_each(|replica| replica.failpoint = Some("AnyTerm"));
    scene.group.start_all();
    scene.group.settled().await;
    let ns = scene.database.create_namespace(NAMESPACE).await;
    let (id, key) = scene.database.mkdir(ns, ns, "mine").await;
    scene.group.client.await_request(key, std::time::Duration::from_secs(20)).await.unwrap();

    // A leader of a term near the limit gives the directory away, under a version that nothing supersedes.
    let before = scene.group.settled().await;
    let leader = before.iter().find(|status| status.role == "leader").unwrap();
    let record = DirectoryRecord {
        ns: ns.into(),
        pid: ns.into(),
        name: "mine".to_owned(),
        id: id.into(),
        version: i64::MAX as u64,
        permission: Permission { owner: 666, group: 666, mode: 0o777 },
    };
    let lsn = Lsn(leader.applied_lsn + 1);
    let transaction = StreamTransaction { commit_lsn: lsn, ops: vec![DirectoryOp::Put { record, cause: None }] };
    let batch = SourceBatch {
        source: SourceId(leader.sources[0].lineage.unwrap().source),
        transactions: vec![transaction],
        position: Lsn(lsn.0 + 1),
    };
    for (replica, status) in scene.group.replicas.iter().zip(&before) {
        let message = append(
            &Status { committed_index: leader.committed_index, ..status.clone() },
            (u64::MAX - 1, 12_345),
            Some(&Command::Stream(vec![batch.clone()])),
        );
        PeerClient::new(channel(&replica.address, None)).append(message).await.unwrap();
    }
    let asked = scene.group.replicas[0].address.clone();
    eventually("the poison to be applied", || async {
        let ids = What::Ids(index::DirectoryIds { ids: vec![id.cast_unsigned()] });
        let request = index::DirectoriesRequest { group: 1, what: Some(ids), ..index::DirectoriesRequest::default() };
        let answer = IndexClient::new(channel(&asked, None)).directories(request).await.ok()?.into_inner();
        (answer.directories.first()?.owner == 666).then_some(())
    })
    .await;

    // The runbook: all replicas are stopped, their data is removed, and they start again, with certificates.
    scene.group.kill_all();
    for replica in &mut scene.group.replicas {
        replica.failpoint = None;
        fs::remove_dir_all(replica.data()).unwrap();
    }
    scene.configure("strict");
    let client = scene.tls("client", GATEWAY);
    scene.group.use_tls(client);
    scene.group.start_all();
    let after = scene.group.settled().await;
    assert!(after.iter().all(|status| status.term < 1000 && status.cluster_id != leader.cluster_id));
    scene.group.assert_everywhere(NAMESPACE, &["mine"], id).await;
    let found = scene.group.resolve(NAMESPACE, &["mine"]).await;
    assert_eq!((found.permission.owner, found.permission.mode), (0, 0o700), "as PostgreSQL has it");
    let (next, key) = scene.database.mkdir(ns, id, "below").await;
    scene.group.client.await_request(key, std::time::Duration::from_secs(20)).await.unwrap();
    scene.group.assert_everywhere(NAMESPACE, &["mine", "below"], next).await;
    scene.end().await;
}
