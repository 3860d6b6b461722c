//! An index over several PostgreSQL nodes: a Citus cluster whose workers each have a part of the directories.
//!
//! Run by `tests/concurrency/test_citus.py`, which creates the cluster and passes its address.
// In a test a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod support;

use std::{collections::HashMap, env, fs, time::Duration};

use mantle_index_client::{Query, RenameRequest};
use mantle_types::{Caller, Epoch, ErrorCode, NamespaceId, RequestKey};
use support::{ROOT, TestDatabase, TestGroup, connect, eventually, mkdir_in};
use tokio_postgres::{Client, Config};
use uuid::Uuid;

const WAIT: Duration = Duration::from_secs(30);
const DIRECTORIES: usize = 24;
const NAMESPACE: &str = "several-nodes";

fn config(port: u16) -> Config {
    let required = |name: &str| env::var(name).unwrap_or_else(|_| panic!("{name} says where the cluster is"));
    let password = fs::read_to_string(required("MANTLE_TEST_CITUS_PASSWORD_FILE")).unwrap();
    let mut config = Config::new();
    config.host("127.0.0.1").port(port).user("postgres").password(password.trim_end());
    config.dbname(required("MANTLE_TEST_CITUS_DATABASE"));
    config
}

struct Scene {
    group: TestGroup,
    database: TestDatabase,
    ns: i64,
    /// The path of every directory, as PostgreSQL answered.
    paths: HashMap<Vec<String>, i64>,
}

impl Scene {
    async fn worker_of(&self, pid: i64) -> i32 {
        let sql = "SELECT n.nodeport FROM pg_dist_placement p JOIN pg_dist_node n USING (groupid) \
                   WHERE p.shardid = get_shard_id_for_distribution_column('mantle.meta', $1::bigint)";
        self.database.client.query_one(sql, &[&pid]).await.unwrap().get(0)
    }

    async fn mkdir(&mut self, parent: &[String], name: &str) -> i64 {
        let pid = if parent.is_empty() { self.ns } else { self.paths[parent] };
        let (id, key) = self.database.mkdir(self.ns, pid, name).await;
        self.group.client.await_request(key, WAIT).await.expect("an acknowledgement");
        self.paths.insert([parent, &[name.to_owned()]].concat(), id);
        id
    }

    /// Moves a directory as a gateway does: prepare in the index, commit in PostgreSQL, await.
    async fn rename(&mut self, from: &[String], to: &[String]) {
        let request = RequestKey { principal: ROOT, ns: NamespaceId::from(self.ns), id: Uuid::new_v4() };
        let prepared = self.group.client.prepare_rename(RenameRequest {
            request,
            namespace: NAMESPACE.into(),
            source: from.to_vec(),
            destination: to.to_vec(),
            caller: Caller { uid: ROOT, gids: vec![] },
            lock_ms: 60_000,
            overwrite: false,
            remove: false,
            below: Vec::new(),
        });
        let prepared = prepared.await.unwrap();
        let (source, destination) = (prepared.source_pid.as_i64(), prepared.destination_pid.as_i64());
        let (epoch, attempt) = (prepared.epoch.0 as i64, prepared.attempt as i64);
        let sql = "SELECT code FROM mantle.rename_directory(0, $1, $2, $3::text || '/', $4, $5, $6::text || '/', 0, 1, $7, $8, $9, 1, p_proof => $10)";
        let (id, names) = (prepared.source_id.as_i64(), (from.last().unwrap(), to.last().unwrap()));
        let client = &self.database.client;
        let row = client
            .query_one(
                sql,
                &[
                    &self.ns,
                    &source,
                    names.0,
                    &id,
                    &destination,
                    names.1,
                    &epoch,
                    &attempt,
                    &request.id,
                    &prepared.proof,
                ],
            )
            .await
            .unwrap();
        assert_eq!(row.get::<_, Option<String>>(0), None);
        self.group.client.await_request(request, WAIT).await.expect("an acknowledgement of both parts");
        let moved = self.paths.remove(from).unwrap();
        self.paths.insert(to.to_vec(), moved);
    }

    async fn rmdir(&mut self, path: &[String]) {
        let pid = if path.len() == 1 { self.ns } else { self.paths[&path[..path.len() - 1]] };
        let (id, request) = (self.paths.remove(path).unwrap(), Uuid::new_v4());
        let sql = "SELECT code FROM mantle.rmdir('{0}', ARRAY[$1::bigint], ARRAY[$2::bigint], ARRAY[$3::text || '/'], \
                   ARRAY[$4::bigint], ARRAY[$5::uuid], ARRAY[1::bigint])";
        let name = path.last().unwrap();
        let row = self.database.client.query_one(sql, &[&self.ns, &pid, name, &id, &request]).await.unwrap();
        assert_eq!(row.get::<_, Option<String>>(0), None);
        let key = RequestKey { principal: ROOT, ns: NamespaceId::from(self.ns), id: request };
        self.group.client.await_request(key, WAIT).await.expect("an acknowledgement");
        let gone: Vec<&str> = path.iter().map(String::as_str).collect();
        assert_eq!(self.group.resolve(NAMESPACE, &gone).await.outcome.unwrap_err().code(), ErrorCode::NotFound);
    }

    /// Checks that every path leads to PostgreSQL's directory, and that the index has no others.
    async fn assert_same(&self) {
        for (path, id) in &self.paths {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            self.group.assert_everywhere(NAMESPACE, &path, *id).await;
        }
        let sql = "SELECT count(*) FROM mantle.directories";
        let rows: i64 = self.database.client.query_one(sql, &[]).await.unwrap().get(0);
        let status = self.group.status(0).await.unwrap();
        assert_eq!((status.directories, status.locks), (rows as u64, 0));
    }

    /// Makes directories, renames them across the two nodes and back, and removes them.
    async fn churn(&mut self, prefix: &str) {
        let name = |i: usize| format!("{prefix}{i}");
        let mut by_worker: HashMap<i32, Vec<String>> = HashMap::new();
        for i in 0..DIRECTORIES {
            let id = self.mkdir(&[], &name(i)).await;
            by_worker.entry(self.worker_of(id).await).or_default().push(name(i));
        }
        assert_eq!(by_worker.len(), 2, "directories on both workers");
        let workers: Vec<Vec<String>> = by_worker.into_values().collect();
        let pairs: Vec<(String, String)> = workers[0].iter().cloned().zip(workers[1].iter().cloned()).take(6).collect();
        for (here, there) in &pairs {
            self.mkdir(std::slice::from_ref(here), "moved").await;
            let path = |parent: &String, name: &str| vec![parent.clone(), name.to_owned()];
            self.rename(&path(here, "moved"), &path(there, "arrived")).await;
            self.rename(&path(there, "arrived"), &path(here, "back")).await;
            self.rename(&path(here, "back"), &path(there, "settled")).await;
        }
        let (here, there) = &pairs[0];
        self.rmdir(&[there.clone(), "settled".into()]).await;
        self.rmdir(std::slice::from_ref(here)).await;
        self.rmdir(std::slice::from_ref(there)).await;
    }
}

impl Scene {
    /// A miss is final while the coordinator is away: the workers have the directories, and tell their positions (P58).
    async fn assert_final_without_coordinator(&self, port: u16) {
        let database = config(port).get_dbname().unwrap().to_owned();
        let coordinator = connect(config(port).dbname("postgres")).await;
        let allow = async |allows: bool| {
            let alter = format!("ALTER DATABASE {database} ALLOW_CONNECTIONS {allows}");
            coordinator.batch_execute(&format!("SET citus.enable_ddl_propagation = off; {alter}")).await.unwrap();
        };
        allow(false).await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = $1 AND application_name = 'mantle-indexnode'";
        coordinator.query(end, &[&database]).await.unwrap();
        let miss = || Query::new(NAMESPACE, ["nowhere"], Caller { uid: ROOT, gids: vec![] });
        eventually("a final miss", || async {
            let answers = self.group.client.settle(Epoch(0), vec![miss()]).await.ok()?;
            answers[0].is_settled.then(|| assert!(answers[0].outcome.is_err()))
        })
        .await;
        allow(true).await;
        eventually("the coordinator", || async { self.group.status(0).await?.streaming.then_some(()) }).await;
    }
}

async fn workers(coordinator: &Client) -> Vec<Client> {
    let rows = coordinator.query("SELECT port FROM mantle.index_sources()", &[]).await.unwrap();
    let mut sessions = Vec::new();
    for row in rows {
        sessions.push(connect(&config(row.get::<_, i32>(0) as u16)).await);
    }
    sessions
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Citus cluster"]
async fn citus_index_holds_what_several_nodes_hold() {
    let port = env::var("MANTLE_TEST_CITUS_PORT").expect("MANTLE_TEST_CITUS_PORT says where the cluster is");
    let mut database = TestDatabase::existing(config(port.parse().unwrap())).await;
    let mut group = TestGroup::of(1, &database);
    group.start_all();
    group.settled().await;
    let ns = database.create_namespace(NAMESPACE).await;
    let mut scene = Scene { group, database, ns, paths: HashMap::new() };
    let status = scene.group.status(0).await.unwrap();
    assert_eq!(status.sources.len(), 2, "{:?}", status.sources);
    let unread = "SELECT node FROM mantle.check_cluster() WHERE problem = 'slot'";
    eventually("a reader of every node", || async {
        let rows = scene.database.client.query(unread, &[]).await.unwrap();
        rows.is_empty().then_some(())
    })
    .await;
    scene.churn("first").await;
    scene.assert_same().await;

    // Changes made while no leader reads are read afterwards, from both nodes.
    scene.group.kill_all();
    let (client, id) = (&scene.database.client, scene.database.next_id);
    for i in 0..10 {
        mkdir_in(client, ns, ns, &format!("unread{i}"), id + i).await;
        scene.paths.insert(vec![format!("unread{i}")], id + i);
    }
    scene.database.next_id += 10;
    scene.group.start_all();
    let after = scene.group.settled().await.remove(0);
    assert_eq!(after.rebuilds, 0, "no rebuild was needed");
    eventually("the rest", || async { (scene.group.status(0).await?.locks == 0).then_some(()) }).await;
    scene.churn("second").await;
    scene.assert_same().await;
    scene.assert_final_without_coordinator(port.parse().unwrap()).await;

    // A node's slot is lost: everything is copied again, and no removed directory reappears.
    let workers = workers(&scene.database.client).await;
    let drop_slot = "SELECT pg_terminate_backend(active_pid, 5000), pg_drop_replication_slot(slot_name) \
                     FROM pg_replication_slots WHERE database = current_database()";
    eventually("the slot to be dropped", || async { workers[1].query(drop_slot, &[]).await.ok() }).await;
    eventually("a rebuild", || async {
        let status = scene.group.status(0).await?;
        (status.epoch > after.epoch && status.ready && status.streaming).then_some(())
    })
    .await;
    scene.churn("third").await;
    scene.assert_same().await;
    scene.group.kill_all();
    for worker in workers {
        eventually("the slot to be dropped", || async { worker.query(drop_slot, &[]).await.ok() }).await;
    }
}
