//! A group whose replicas have certificates, and what the tests ask and send it.

use std::sync::atomic::{AtomicUsize, Ordering};

use mantle_index_client::{Status, connect_lazy};
use mantle_indexnode::{
    index::command::Command,
    proto::peer,
    raft::{
        Proposal, TypeConfig,
        types::{CommittedLeaderId, Entry, LogId, Vote},
    },
};
use mantle_tls::{
    Phase, Tls,
    testing::{Authority, Files},
};
use openraft::{EntryPayload, raft::AppendEntriesRequest, vote::RaftLeaderId};
use tokio::net::TcpStream;
use tonic::transport::Channel;

use crate::support::{TestDatabase, TestGroup, eventually};

pub const HOST: &str = "127.0.0.1";
pub const NAMESPACE: &str = "secured";
pub const PEER: (&str, &str) = ("mantle-peer", HOST);
pub const GATEWAY: (&str, &str) = ("mantle-gateway", "gateway.example");
pub const ADMINISTRATOR: (&str, &str) = ("mantle-administrator", "dba.example");

/// A group, the files of its replicas, and who may have a certificate.
pub struct Scene {
    pub database: TestDatabase,
    pub group: TestGroup,
    pub authority: Authority,
    pub replicas: Vec<Files>,
}

impl Scene {
    /// A group that has certificates but does not use them yet.
    pub async fn new() -> Self {
        let database = TestDatabase::create().await;
        let (group, authority) = (TestGroup::new(&database), Authority::default());
        let files = |i| Files::new(&group.folder().join(format!("tls{i}")), &[&authority], &authority, PEER);
        let replicas = (0..group.replicas.len()).map(files).collect();
        Self { database, group, authority, replicas }
    }

    /// The section `[tls]` of every replica, from its next start on.
    pub fn configure(&self, phase: &str) {
        for (replica, files) in self.group.replicas.iter().zip(&self.replicas) {
            let file = |name: &str| files.path(name).display().to_string();
            let (ca, certificate, key) = (file("ca.crt"), file("own.crt"), file("own.key"));
            let section = format!(
                "[tls]\nca_file = {ca:?}\ncertificate_file = {certificate:?}\nkey_file = {key:?}\nphase = {phase:?}\n"
            );
            replica.configure(|text| text.split("[tls]").next().unwrap().to_owned() + &section);
        }
    }

    pub fn certificate(&self, name: &str, of: (&str, &str)) -> Files {
        Files::new(&self.group.folder().join(name), &[&self.authority], &self.authority, of)
    }

    pub fn tls(&self, name: &str, of: (&str, &str)) -> Tls {
        Tls::load(self.certificate(name, of).settings(Phase::Strict)).unwrap()
    }

    /// A group that takes nothing but TLS.
    pub async fn strict() -> Self {
        let mut scene = Self::new().await;
        scene.configure("strict");
        let client = scene.tls("client", GATEWAY);
        scene.group.use_tls(client);
        scene.group.start_all();
        scene.group.settled().await;
        scene
    }

    /// Kills and starts one replica after the other; the others serve.
    pub async fn restart_each(&mut self, down: &AtomicUsize) {
        for i in 0..self.group.replicas.len() {
            down.store(i, Ordering::Release);
            self.group.replicas[i].kill();
            self.group.replicas[i].start();
            eventually("the replica to be ready", || async {
                self.group.status(i).await.is_some_and(|status| status.ready).then_some(())
            })
            .await;
        }
        down.store(usize::MAX, Ordering::Release);
    }

    pub async fn end(self) {
        drop(self.group);
        self.database.drop().await;
    }
}

pub fn channel(address: &str, tls: Option<Tls>) -> Channel {
    connect_lazy(address, 1 << 20, tls).unwrap()
}

/// An append of one entry that its sender, a leader of this term, calls committed.
pub fn append(status: &Status, (term, node_id): (u64, u64), command: Option<&Command>) -> peer::RaftMessage {
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

pub async fn metrics(address: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    page
}

pub fn value(page: &str, series: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.starts_with(series))?;
    line.rsplit(' ').next()?.parse().ok()
}
