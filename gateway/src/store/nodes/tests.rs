//! The store against a Citus cluster: each directory's calls go to the node that has it, even after its shard moved.
//! `tests/concurrency/test_citus.py` makes the cluster, passes its address and runs these tests.

mod answers;
mod prepared_parts;

use std::{env, path::PathBuf, sync::Arc, time::Duration};

use futures::future::try_join_all;
use mantle_types::{Caller, ErrorCode, GroupId, Permission};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::{
    config::Postgres,
    store::{
        Doubt, LeasedPartition, NewDirectory, NewObject, Precondition, RequestClaim, ResolutionStart, Store, Waits,
    },
};

const DIRECTORIES: i64 = 24;
const OBJECTS_EACH: i64 = 10;
/// The index group that every database has.
const GROUP: GroupId = GroupId(1);
const APPLICATION: &str = "citus-test";
const WAITS: Waits = Waits { connection: Duration::from_secs(10), answer: Duration::from_secs(15) };

fn required(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} says where the cluster is"))
}

fn config() -> Postgres {
    Postgres {
        host: "127.0.0.1".into(),
        port: required("MANTLE_TEST_CITUS_PORT").parse().expect("a port"),
        node_port: None,
        database: required("MANTLE_TEST_CITUS_DATABASE"),
        user: "postgres".into(),
        password_file: Some(PathBuf::from(required("MANTLE_TEST_CITUS_PASSWORD_FILE"))),
        tls: None,
        plain: false,
        pool_size: 4,
        batches_in_flight_max: 4,
        batch_elements_max: 64,
    }
}

async fn session(port: u16) -> Client {
    let config = config();
    let password = std::fs::read_to_string(config.password_file.expect("given above")).expect("the password");
    let mut pg = tokio_postgres::Config::new();
    pg.host(&config.host).port(port).dbname(&config.database).user(&config.user).password(password.trim_end());
    let (client, connection) = pg.connect(NoTls).await.expect("a session");
    tokio::spawn(connection);
    client
}

/// The coordinator's session, then the workers'.
async fn sessions() -> Vec<Client> {
    let mut nodes = vec![session(config().port).await];
    let workers = "SELECT nodeport FROM pg_dist_node WHERE groupid > 0 ORDER BY 1";
    for row in nodes[0].query(workers, &[]).await.expect("nodes") {
        nodes.push(session(row.get::<_, i32>(0) as u16).await);
    }
    nodes
}

fn new_store() -> Store {
    Store::new(&config(), mantle_tls::PostgresConnector::load(None).expect("no files"), APPLICATION, WAITS)
        .expect("a store")
}

/// A new namespace, whose ids are the following 100,000, and its name.
async fn namespace(store: &Store, nodes: &[Client]) -> (i64, String) {
    let ns = store.allocate_ids("citus-test", 100_000).await.expect("ids").first;
    let name = format!("citus-{ns}");
    let create = "SELECT code FROM mantle.create_namespace(0, $1, $2, 0, 0, 493, gen_random_uuid(), 0)";
    nodes[0].execute(create, &[&name, &ns]).await.expect("a namespace");
    (ns, name)
}

/// The session of the node that has a partition, and the name of a table's shard.
async fn shard_of(nodes: &[Client], pid: i64, table: &str) -> (usize, String) {
    let query = "SELECT n.nodeport, 'mantle.' || $2::text || '_' || s.shardid
                   FROM pg_dist_placement s JOIN pg_dist_node n ON n.groupid = s.groupid
                  WHERE s.shardid = get_shard_id_for_distribution_column(('mantle.' || $2::text)::regclass, $1::bigint)";
    let row = nodes[0].query_one(query, &[&pid, &table]).await.expect("a placement");
    let mut ports = Vec::new();
    for node in nodes {
        let port: String = node.query_one("SELECT current_setting('port')", &[]).await.expect("a port").get(0);
        ports.push(port.parse::<i32>().expect("a number"));
    }
    let at = ports.iter().position(|port| *port == row.get::<_, i32>(0)).expect("a known node");
    (at, row.get(1))
}

/// Moves the shard that has a partition to the other worker.
async fn move_shard_of(nodes: &[Client], pid: i64) {
    let moves =
        "SELECT citus_move_shard_placement(s.shardid, n.nodename, n.nodeport, o.nodename, o.nodeport, 'block_writes')
                   FROM pg_dist_placement s JOIN pg_dist_node n ON n.groupid = s.groupid
                   JOIN pg_dist_node o ON o.groupid > 0 AND o.groupid <> n.groupid
                  WHERE s.shardid = get_shard_id_for_distribution_column('mantle.meta', $1::bigint)";
    nodes[0].execute(moves, &[&pid]).await.expect("a move");
}

/// Runs a statement on a node's shards in a transaction that ends in this way.
async fn run(node: &Client, statement: &str, end: &str) {
    let text = format!("SET citus.enable_manual_changes_to_shards = on; BEGIN; {statement}; {end}");
    node.batch_execute(&text).await.expect(statement);
}

const ROOT: Caller = Caller { uid: 0, gids: Vec::new() };

fn claim(ns: i64) -> RequestClaim {
    RequestClaim { principal: 0, ns: ns.into(), request: Uuid::new_v4(), hash: 1 }
}

async fn resolution_start(store: &Store) -> mantle_types::Result<ResolutionStart> {
    Ok(ResolutionStart::now(Arc::new(store.resolution_context(GROUP, None).await?)))
}

async fn mkdir(store: &Store, ns: i64, id: i64) -> mantle_types::Result<()> {
    mkdir_as(store, claim(ns), id).await
}

async fn mkdir_as(store: &Store, claim: RequestClaim, id: i64) -> mantle_types::Result<()> {
    let permission = Permission { owner: 0, group: 0, mode: 0o755 };
    let parent = store.lease(&resolution_start(store).await?, claim.ns.as_i64().into());
    let (name, id) = (format!("d{id}/"), id.into());
    let new = NewDirectory { name, id, permission, explicit: true, user_metadata: None };
    store.mkdir.submit(claim, &ROOT, parent, new).await.map(drop)
}

async fn put(store: &Store, ns: i64, parent: LeasedPartition, name: String, id: i64) -> mantle_types::Result<()> {
    let new = NewObject {
        name,
        id: id.into(),
        permission: Permission { owner: 0, group: 0, mode: 0o644 },
        size: 1,
        etag: "e".into(),
        content_type: None,
        user_metadata: None,
        locator: Some("l".into()),
        inline: None,
        precondition: Precondition::None,
        doubt: Doubt::default(),
    };
    store.put_object.run(claim(ns), &ROOT, parent, new).await.map(drop)
}

/// Puts new objects into all directories at once.
async fn puts(store: &Store, ns: i64, directories: &[i64], round: i64) -> mantle_types::Result<Vec<()>> {
    let start = resolution_start(store).await?;
    let places = directories.iter().flat_map(|pid| (0..OBJECTS_EACH).map(move |n| (*pid, n)));
    let first = ns + 1000 * (round + 1);
    let put = |(id, (pid, n)): (i64, (i64, i64))| {
        put(store, ns, store.lease(&start, pid.into()), format!("o{round}-{n}"), id)
    };
    try_join_all((first..).zip(places).map(put)).await
}

/// How often a function ran on each node.
async fn calls(nodes: &[Client], function: &str) -> Vec<i64> {
    let mut found = Vec::new();
    for node in nodes {
        let query = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_user_functions WHERE funcname = $1";
        found.push(node.query_one(query, &[&function]).await.expect("statistics").get(0));
    }
    found
}

/// Waits for the end of a store's sessions, which then have reported their statistics.
async fn end(store: Store, nodes: &[Client]) {
    drop(store);
    let query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    for node in nodes {
        let mut left: i64 = 1;
        for _ in 0..200 {
            left = node.query_one(query, &[&APPLICATION]).await.expect("sessions").get(0);
            if left == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(left, 0, "a session of the store is still there");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Citus cluster: tests/concurrency/test_citus.py runs it"]
async fn citus_calls_go_to_the_node_that_has_the_directory() {
    let nodes = sessions().await;
    let store = new_store();
    let (ns, _) = namespace(&store, &nodes).await;
    let directories: Vec<i64> = (1..=DIRECTORIES).map(|n| ns + n).collect();
    try_join_all(directories.iter().map(|id| mkdir(&store, ns, *id))).await.expect("directories");
    puts(&store, ns, &directories, 0).await.expect("objects");
    end(store, &nodes).await;
    let made = calls(&nodes, "put_object").await;
    assert_eq!(made[0], 0, "the coordinator was asked: {made:?}");
    assert!(made[1..].iter().all(|calls| *calls > 0), "a worker was not asked: {made:?}");
    assert!(made.iter().sum::<i64>() < DIRECTORIES * OBJECTS_EACH, "nothing went together: {made:?}");
    assert_eq!(calls(&nodes, "put_object_distributed").await, [0, 0, 0], "a call came to another node");

    // Only the workers are sources: lookups carry their histories, and replays await their WAL positions.
    let store = new_store();
    let feeding = nodes[0].query("SELECT source FROM mantle.index_sources() ORDER BY 1", &[]).await.expect("sources");
    let feeding: Vec<u32> = feeding.iter().map(|row| row.get::<_, i32>(0) as u32).collect();
    assert_eq!(feeding.len(), 2);
    let mut flushed = store.flushed().await.expect("positions");
    flushed.sort_unstable();
    assert_eq!(flushed.iter().map(|(source, _)| *source).collect::<Vec<_>>(), feeding);
    assert!(flushed.iter().all(|(_, lsn)| lsn.0 > 0));
    let context = store.resolution_context(GROUP, None).await.expect("a context");
    let mut sources: Vec<_> = context.lookup.lineages.iter().map(|lineage| lineage.source).collect();
    sources.sort_unstable();
    assert_eq!(sources, feeding);
    assert_ne!(context.lookup.lineages[0].system_identifier, context.lookup.lineages[1].system_identifier);

    // The shard of one directory moves to the other worker, and the map is out of date.
    mkdir(&store, ns, ns + DIRECTORIES + 1).await.expect("a directory, for the map");
    move_shard_of(&nodes, directories[0]).await;
    // The lease belongs to the node that had the shard. The gateway resolves again and gets the new node's.
    match puts(&store, ns, &directories, 1).await {
        Err(error) if error.code() == ErrorCode::LineageChanged => {
            store.refresh_map().await.expect("the map");
            puts(&store, ns, &directories, 2).await.expect("objects, after the move");
        }
        answer => {
            answer.expect("objects, after the move");
        }
    }
    let there = "SELECT entries FROM mantle.dirstat($1, ARRAY[$2::bigint])";
    let entries: i64 = nodes[0].query_one(there, &[&ns, &directories[0]]).await.expect("counts").get(0);
    assert_eq!(entries, 2 * OBJECTS_EACH, "in the directory that moved: a refused round made nothing there");
}
