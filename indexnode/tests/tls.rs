//! A group with certificates: who may call what, how a group changes to TLS while it serves, and how it is healed after forged
//! messages.
//!
//! Needs `MANTLE_TEST_DATABASE_URL`, and `-- --ignored`; `tests/run.py` runs it.
// In a test a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod support;

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, atomic::AtomicUsize},
};

use bytes::Bytes;
use mantle_index_client::{
    Status, connect_lazy,
    proto::{self as index, directories_request::What, index_client::IndexClient},
};
use mantle_indexnode::{
    index::command::{Command, SourceBatch, SourceId, StreamTransaction},
    proto::peer::{self, peer_client::PeerClient},
    raft::{
        Proposal, TypeConfig,
        types::{CommittedLeaderId, Entry, LogId, Vote},
    },
};
use mantle_tls::{
    Phase, Tls,
    testing::{Authority, Files},
};
use mantle_types::{
    Lsn,
    message::{DirectoryOp, DirectoryRecord},
    permission::Permission,
};
use openraft::{
    EntryPayload,
    raft::{AppendEntriesRequest, TransferLeaderRequest, VoteRequest},
    vote::RaftLeaderId,
};
use support::{TestDatabase, TestGroup, eventually, load::Load};
use tokio::net::{TcpListener, TcpStream};
use tonic::{Code, transport::Channel};

const HOST: &str = "127.0.0.1";
const NAMESPACE: &str = "secured";
const PEER: (&str, &str) = ("mantle-peer", HOST);
const GATEWAY: (&str, &str) = ("mantle-gateway", "gateway.example");
const ADMINISTRATOR: (&str, &str) = ("mantle-administrator", "dba.example");

/// A group, the files of its replicas, and who may have a certificate.
struct Scene {
    database: TestDatabase,
    group: TestGroup,
    authority: Authority,
    replicas: Vec<Files>,
}

impl Scene {
    /// A group that has certificates but does not use them yet.
    async fn new() -> Self {
        let database = TestDatabase::create().await;
        let (group, authority) = (TestGroup::new(&database), Authority::default());
        let files = |i| Files::new(&group.folder().join(format!("tls{i}")), &[&authority], &authority, PEER);
        let replicas = (0..group.replicas.len()).map(files).collect();
        Self { database, group, authority, replicas }
    }

    /// The section `[tls]` of every replica, from its next start on.
    fn configure(&self, phase: &str) {
        for (replica, files) in self.group.replicas.iter().zip(&self.replicas) {
            let file = |name: &str| files.path(name).display().to_string();
            let (ca, certificate, key) = (file("ca.crt"), file("own.crt"), file("own.key"));
            let section = format!(
                "[tls]\nca_file = {ca:?}\ncertificate_file = {certificate:?}\nkey_file = {key:?}\nphase = {phase:?}\n"
            );
            replica.configure(|text| text.split("[tls]").next().unwrap().to_owned() + &section);
        }
    }

    fn certificate(&self, name: &str, of: (&str, &str)) -> Files {
        Files::new(&self.group.folder().join(name), &[&self.authority], &self.authority, of)
    }

    fn tls(&self, name: &str, of: (&str, &str)) -> Tls {
        Tls::load(self.certificate(name, of).settings(Phase::Strict)).unwrap()
    }

    /// A group that takes nothing but TLS.
    async fn strict() -> Self {
        let mut scene = Self::new().await;
        scene.configure("strict");
        let client = scene.tls("client", GATEWAY);
        scene.group.use_tls(client);
        scene.group.start_all();
        scene.group.settled().await;
        scene
    }

    /// Kills and starts one replica after the other; the others serve.
    async fn restart_each(&mut self, down: &AtomicUsize) {
        for i in 0..self.group.replicas.len() {
            down.store(i, std::sync::atomic::Ordering::Release);
            self.group.replicas[i].kill();
            self.group.replicas[i].start();
            eventually("the replica to be ready", || async {
                self.group.status(i).await.is_some_and(|status| status.ready).then_some(())
            })
            .await;
        }
        down.store(usize::MAX, std::sync::atomic::Ordering::Release);
    }

    async fn end(self) {
        drop(self.group);
        self.database.drop().await;
    }
}

fn channel(address: &str, tls: Option<Tls>) -> Channel {
    connect_lazy(address, 1 << 20, tls).unwrap()
}

/// An append of one entry that its sender, a leader of this term, calls committed.
fn append(status: &Status, (term, node_id): (u64, u64), command: Option<&Command>) -> peer::RaftMessage {
    let leader = |term, node_id| CommittedLeaderId::new(term, node_id);
    let last = LogId::new(leader(status.term, status.leader_id), status.committed_index);
    let new = LogId::new(leader(term, node_id), status.committed_index + 1);
    let entries: Vec<Entry> = command
        .map(|command| Entry { log_id: new, payload: EntryPayload::Normal(Proposal::encode(command)) })
        .into_iter()
        .collect();
    let leader_commit = command.map(|_| new);
    let rpc = AppendEntriesRequest::<TypeConfig> {
        vote: Vote::new_committed(term, node_id),
        prev_log_id: command.map(|_| last),
        entries,
        leader_commit,
    };
    let to = peer::Destination { cluster_id: status.cluster_id.clone(), node_id: status.node_id, group: 1 };
    peer::RaftMessage { to: Some(to), body: postcard::to_stdvec(&rpc).unwrap().into(), ..peer::RaftMessage::default() }
}

/// The code of each call with a channel.
async fn codes(channel: Channel, status: &Status) -> BTreeMap<&'static str, Code> {
    let (mut index, mut replica) = (IndexClient::new(channel.clone()), PeerClient::new(channel));
    let mut found = BTreeMap::new();
    macro_rules! calls {
        ($client:ident: $($method:ident($request:expr))*) => {
            $({
                let code = $client.$method($request).await.map_or_else(|status| status.code(), |_| Code::Ok);
                found.insert(stringify!($method), code);
            })*
        };
    }
    let message = || append(status, (status.term, 0), None);
    calls! { index:
        resolve(tokio_stream::iter([index::ResolveRequest::default()]))
        prepare_rename(index::PrepareRenameRequest::default())
        prepare_renames(tokio_stream::iter([index::PrepareRenamesRequest::default()]))
        release_rename(index::ReleaseRenameRequest::default())
        r#await(index::AwaitRequest::default())
        awaits(tokio_stream::iter([index::AwaitsRequest::default()]))
        status(index::StatusRequest { group: 1 })
        members(index::MembersRequest { group: 1 })
        change_member(index::ChangeMemberRequest::default())
        directories(index::DirectoriesRequest { group: 1, ..index::DirectoriesRequest::default() })
    }
    calls! { replica:
        describe(peer::DescribeRequest { group: 1, node_id: 0 })
        join(peer::JoinRequest::default())
        read_index(peer::ReadIndexRequest::default())
        read_indexes(tokio_stream::iter([peer::ReadIndexRequest::default()]))
        append(message())
        appends(tokio_stream::iter([message()]))
        vote(message())
        pre_vote(message())
        transfer_leader(message())
        install_snapshot(tokio_stream::iter([peer::SnapshotPart::default()]))
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_take_only_the_calls_of_a_role() {
    let mut scene = Scene::strict().await;
    let (address, status) = (scene.group.replicas[0].address.clone(), scene.group.status(0).await.unwrap());
    let with = |name, of| channel(&address, Some(scene.tls(name, of)));
    const ALL: usize = 20;

    // Neither TLS nor a certificate: everything is refused, by a code that says why.
    let found = codes(channel(&address, None), &status).await;
    assert_eq!(found.values().filter(|code| **code == Code::Unauthenticated).count(), ALL, "{found:?}");

    // A certificate of the authority without a role, as etcd or PostgreSQL may have.
    let found = codes(with("other", ("database", HOST)), &status).await;
    assert_eq!(found.values().filter(|code| **code == Code::PermissionDenied).count(), ALL, "{found:?}");

    for (name, of, allowed) in [
        (
            "gateway",
            GATEWAY,
            &["await", "awaits", "prepare_rename", "prepare_renames", "release_rename", "resolve", "status"][..],
        ),
        ("dba", ADMINISTRATOR, &["await", "awaits", "change_member", "directories", "members", "status"]),
    ] {
        let found = codes(with(name, of), &status).await;
        let may: Vec<_> = found.iter().filter(|(_, code)| **code != Code::PermissionDenied).collect();
        let names: Vec<_> = may.iter().map(|(method, _)| method.trim_start_matches("r#")).collect();
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable();
        assert_eq!(names, allowed, "{name}: {found:?}");
        assert!(may.iter().all(|(_, code)| **code != Code::Unauthenticated), "{found:?}");
    }

    // Of the calls of gateways and administrators a peer may make one. (Whose messages of Raft count is another test.)
    let found = codes(with("peer", ("mantle-peer", "127.0.0.2")), &status).await;
    let of_others = ["resolve", "prepare_rename", "prepare_renames", "release_rename", "r#await", "awaits", "status"];
    let of_others = of_others.into_iter().chain(["members", "change_member", "directories"]);
    let may: Vec<_> = of_others.filter(|method| found[method] != Code::PermissionDenied).collect();
    assert_eq!(may, ["status"], "{found:?}");

    let ns = scene.database.create_namespace(NAMESPACE).await;
    let (id, key) = scene.database.mkdir(ns, ns, "d").await;
    scene.group.client.await_request(key, std::time::Duration::from_secs(20)).await.unwrap();
    scene.group.assert_everywhere(NAMESPACE, &["d"], id).await;
    scene.end().await;
}

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

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_change_to_tls_while_they_serve() {
    let mut scene = Scene::new().await;
    scene.group.start_all();
    scene.group.settled().await;
    let ns = scene.database.create_namespace(NAMESPACE).await;
    let down = Arc::new(AtomicUsize::new(usize::MAX));
    let load = Load::start(&scene.database, &scene.group, (NAMESPACE, ns), down.clone()).await;
    load.goes_on().await;

    scene.configure("accept");
    scene.restart_each(&down).await;
    load.goes_on().await;
    load.end().await;

    // The gateways connect with TLS now; the replicas do so one by one.
    let tls = scene.tls("gateway", GATEWAY);
    scene.group.use_tls(tls);
    let ns = scene.database.create_namespace("later").await;
    let load = Load::start(&scene.database, &scene.group, ("later", ns), down.clone()).await;
    load.goes_on().await;
    scene.configure("connect");
    scene.restart_each(&down).await;
    load.goes_on().await;

    // What says that the last phase may come: nobody has a plain connection. (Counted since the restart.)
    for i in 0..scene.group.replicas.len() {
        eventually("no plain connection", || async {
            let page = metrics(&scene.group.replicas[i].http_address).await;
            (value(&page, "mantle_tls_open_connections{kind=\"plain\"}") == Some(0.0)
                || value(&page, "mantle_tls_open_connections{kind=\"plain\"}").is_none())
            .then_some(())
        })
        .await;
        let page = metrics(&scene.group.replicas[i].http_address).await;
        assert!(value(&page, "mantle_tls_open_connections{kind=\"tls\"}").is_some_and(|open| open >= 2.0), "{page}");
        assert!(value(&page, "mantle_tls_certificate_days{file=\"certificate\"}").is_some_and(|days| days > 100.0));
    }
    scene.configure("strict");
    scene.restart_each(&down).await;
    load.goes_on().await;
    assert!(load.end().await > 0);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_replace_their_authority_without_a_restart() {
    let mut scene = Scene::new().await;
    scene.configure("strict");
    let client_files = scene.certificate("client", GATEWAY);
    let client = Tls::load(client_files.settings(Phase::Strict)).unwrap();
    scene.group.use_tls(client.clone());
    scene.group.start_all();
    scene.group.settled().await;
    let ns = scene.database.create_namespace(NAMESPACE).await;
    let down = Arc::new(AtomicUsize::new(usize::MAX));
    let load = Load::start(&scene.database, &scene.group, (NAMESPACE, ns), down).await;
    load.goes_on().await;

    let (new, old) = (Authority::default(), &scene.authority);
    let all = || scene.replicas.iter().chain([&client_files]);
    let reloaded = async |times: f64| {
        for replica in &scene.group.replicas {
            eventually("new certificates", || async {
                let page = metrics(&replica.http_address).await;
                (value(&page, "mantle_tls_reloads_total{file=\"authority\"}") >= Some(times)).then_some(())
            })
            .await;
        }
        client.reload().unwrap();
    };
    all().for_each(|files| files.trust(&[old, &new]));
    reloaded(1.0).await;
    load.goes_on().await;
    // Key and certificate are two files: between them the pair does not fit, and the old one stays.
    scene.replicas.iter().for_each(|files| files.replace(&new, PEER, |_| ()));
    client_files.replace(&new, GATEWAY, |_| ());
    reloaded(2.0).await;
    load.goes_on().await;
    all().for_each(|files| files.trust(&[&new]));
    reloaded(3.0).await;
    load.goes_on().await;
    assert!(load.end().await > 0);

    // The old authority's certificates are worth nothing now.
    let outdated = scene.certificate("outdated", GATEWAY);
    outdated.trust(&[&new]);
    let outdated = Tls::load(outdated.settings(Phase::Strict)).unwrap();
    let address = &scene.group.replicas[0].address;
    let refused = IndexClient::new(channel(address, Some(outdated))).status(index::StatusRequest { group: 1 }).await;
    // By TLS, before there is an answer.
    assert!(matches!(refused.unwrap_err().code(), Code::Unavailable | Code::Cancelled | Code::Unknown));
    let current = IndexClient::new(channel(address, Some(client))).status(index::StatusRequest { group: 1 }).await;
    current.unwrap();
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

async fn metrics(address: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    page
}

fn value(page: &str, series: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.starts_with(series))?;
    line.rsplit(' ').next()?.parse().ok()
}
