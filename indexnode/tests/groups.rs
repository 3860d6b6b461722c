//! Two groups in each of three processes: each has its own namespaces, leader, slot and data, independent of the other.
//!
//! Needs `MANTLE_TEST_DATABASE_URL`, and `-- --ignored`; `tests/run.py` runs it.
// In a test a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod support;

use std::{fs, time::Duration};

use mantle_index_client::{IndexClient, Query, RenameRequest, Resolution, Status, proto::MemberChange};
use mantle_types::{Caller, Epoch, ErrorCode, GroupId, NamespaceId, RequestKey};
use support::{ROOT, TestDatabase, TestGroup, eventually};
use uuid::Uuid;

const WAIT: Duration = Duration::from_secs(20);
const GROUPS: [u32; 2] = [1, 2];

/// The groups of the namespaces `one` and `two`.
struct Scene {
    database: TestDatabase,
    processes: TestGroup,
}

fn root() -> Caller {
    Caller { uid: ROOT, gids: vec![] }
}

impl Scene {
    async fn new() -> Self {
        let database = TestDatabase::create().await;
        database.create_group(2).await;
        let processes = TestGroup::hosting(&GROUPS, &database);
        Self { database, processes }
    }

    fn client(&self, group: u32) -> IndexClient {
        self.processes.client.of_group(GroupId(group)).with_resolve_timeout(WAIT)
    }

    /// Resolves a path in a group, on one of the processes.
    async fn resolve_on(&self, i: usize, group: u32, namespace: &str, path: &[&str]) -> Resolution {
        let address = self.processes.replicas[i].address.clone();
        let client =
            IndexClient::connect_lazy(vec![address], None).unwrap().of_group(GroupId(group)).with_resolve_timeout(WAIT);
        client.resolve_one(Epoch(0), Query::new(namespace, path.iter().copied(), root())).await.unwrap()
    }

    async fn settled(&self) -> Vec<Vec<Status>> {
        let mut all = Vec::new();
        for group in GROUPS {
            all.push(self.processes.settled_group(group).await);
        }
        all
    }

    async fn mkdir(&mut self, group: u32, ns: i64, pid: i64, name: &str) -> i64 {
        let (id, key) = self.database.mkdir(ns, pid, name).await;
        self.client(group).await_request(key, WAIT).await.expect("an acknowledgement");
        id
    }

    /// Checks that a path leads to a directory in its own group, and to nothing in the other, on every process.
    async fn assert_only_in(&self, group: u32, namespace: &str, path: &[&str], id: i64) {
        for i in 0..self.processes.replicas.len() {
            let found = self.resolve_on(i, group, namespace, path).await;
            assert_eq!((found.outcome, found.id.as_i64()), (Ok(()), id), "process {i}, {path:?}");
            let found = self.resolve_on(i, 3 - group, namespace, path).await;
            assert_eq!(found.outcome.unwrap_err().code(), ErrorCode::NamespaceNotFound, "process {i}, {path:?}");
        }
    }

    async fn end(self) {
        drop(self.processes);
        self.database.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_of_two_groups_go_their_own_ways() {
    let mut scene = Scene::new().await;
    // The first directories are copied, the later ones streamed.
    let copied = scene.database.create_namespace_in("copied", 2).await;
    let (old, _) = scene.database.mkdir(copied, copied, "old").await;
    scene.processes.start_all();
    let before = scene.settled().await;
    assert_ne!(before[0][0].cluster_id, before[1][0].cluster_id);
    scene.assert_only_in(2, "copied", &["old"], old).await;
    let one = scene.database.create_namespace_in("one", 1).await;
    let two = scene.database.create_namespace_in("two", 2).await;
    let a = scene.mkdir(1, one, one, "a").await;
    let b = scene.mkdir(2, two, two, "b").await;
    scene.assert_only_in(1, "one", &["a"], a).await;
    scene.assert_only_in(2, "two", &["b"], b).await;

    // A group has only its own directories.
    for (group, directories) in [(1, 2), (2, 4)] {
        let status = scene.client(group).status().await.swap_remove(0).1.unwrap();
        assert_eq!((status.group, &status.groups[..], status.directories), (group, &GROUPS[..], directories));
    }

    // A group that no process hosts has its own error.
    let unknown = scene.processes.client.of_group(GroupId(3));
    let lookup = unknown.resolve_one(Epoch(0), Query::new("one", ["a"], root())).await;
    assert_eq!(lookup.unwrap_err().code(), ErrorCode::UnknownGroup);
    let key = RequestKey { principal: ROOT, ns: NamespaceId::from(one), id: Uuid::new_v4() };
    let late = unknown.await_request(key, Duration::from_millis(500)).await;
    assert_eq!(late.unwrap_err().code(), ErrorCode::UnknownGroup);
    // So has a request without a group, where there are two.
    let unnamed = scene.processes.client.resolve_one(Epoch(0), Query::new("one", ["a"], root())).await;
    assert_eq!(unnamed.unwrap_err().code(), ErrorCode::UnknownGroup);

    // A rename in one group, under the epoch of that group.
    let rename = RenameRequest {
        request: key,
        namespace: "one".into(),
        source: vec!["a".into()],
        destination: vec!["z".into()],
        caller: root(),
        lock_ms: 60_000,
        overwrite: false,
        remove: false,
        below: Vec::new(),
    };
    assert_eq!(scene.client(2).prepare_rename(rename.clone()).await.unwrap_err().code(), ErrorCode::NamespaceNotFound);
    let prepared = scene.client(1).prepare_rename(rename).await.unwrap();
    assert_eq!((prepared.group, prepared.source_id.as_i64()), (GroupId(1), a));
    scene.client(1).release_rename(key, prepared.attempt).await.unwrap();

    // The leadership of one group moves; the other group keeps its leader and term.
    let led = |all: &[Status]| all.iter().position(|s| s.role == "leader").unwrap();
    let settled = scene.settled().await;
    let next = (led(&settled[0]) + 1) % 3;
    let address = scene.processes.replicas[next].address.clone();
    scene.client(1).change_member(&address, MemberChange::Lead, WAIT).await.unwrap();
    let moved = scene.settled().await;
    assert_eq!(led(&moved[0]), next);
    assert_eq!((led(&moved[1]), moved[1][0].term), (led(&settled[1]), settled[1][0].term));

    // A process dies; both groups continue without it, and it rejoins both.
    scene.processes.replicas[next].kill();
    let c = scene.mkdir(1, one, a, "c").await;
    let d = scene.mkdir(2, two, b, "d").await;
    scene.processes.replicas[next].start();
    scene.settled().await;
    scene.assert_only_in(1, "one", &["a", "c"], c).await;
    scene.assert_only_in(2, "two", &["b", "d"], d).await;

    // A rebuild of one group raises its epoch, not the other's.
    let epochs = |all: &[Vec<Status>]| [all[0][0].epoch, all[1][0].epoch];
    let old_epochs = epochs(&scene.settled().await);
    let slot = scene.database.slot_of(2);
    let drop_slot = "SELECT pg_terminate_backend(active_pid, 5000), pg_drop_replication_slot(slot_name) \
                     FROM pg_replication_slots WHERE slot_name = $1";
    eventually("the slot to be dropped", || async { scene.database.client.query(drop_slot, &[&slot]).await.ok() })
        .await;
    eventually("a rebuild", || async {
        let status = scene.client(2).status().await.swap_remove(0).1.ok()?;
        (status.epoch > old_epochs[1]).then_some(())
    })
    .await;
    assert_eq!(epochs(&scene.settled().await)[0], old_epochs[0]);
    scene.assert_only_in(2, "two", &["b", "d"], d).await;

    // Everything restarts.
    scene.processes.kill_all();
    scene.processes.start_all();
    scene.settled().await;
    scene.assert_only_in(1, "one", &["a", "c"], c).await;
    scene.assert_only_in(2, "two", &["b", "d"], d).await;
    scene.end().await;
}

/// The data of version 0.2: log and identity in the process's own directory.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_take_the_folder_of_an_older_version_over() {
    let mut scene = Scene::new().await;
    scene.processes.start_all();
    let before = scene.settled().await;
    let one = scene.database.create_namespace_in("one", 1).await;
    let a = scene.mkdir(1, one, one, "a").await;
    scene.processes.kill_all();
    for replica in &scene.processes.replicas {
        let data = replica.data();
        for name in ["raft", "identity"] {
            fs::rename(data.join("group-1").join(name), data.join(name)).unwrap();
        }
        fs::remove_dir_all(data.join("group-1")).unwrap();
    }
    scene.processes.start_all();
    let after = scene.settled().await;
    for group in 0..2 {
        let ids =
            |all: &[Vec<Status>]| all[group].iter().map(|s| (s.node_id, s.cluster_id.clone())).collect::<Vec<_>>();
        assert_eq!(ids(&before), ids(&after), "group {}", GROUPS[group]);
        assert_eq!(after[group].iter().map(|status| status.rebuilds).sum::<u64>(), 0);
    }
    scene.assert_only_in(1, "one", &["a"], a).await;
    scene.end().await;
}
