//! One part of a rename between two nodes has committed, and the other is only prepared (P26). No lookup may answer
//! that the directory is at neither place, or at both.

use futures::future::join;
use mantle_types::ErrorCode;
use tokio_postgres::Client;

use super::{mkdir, namespace, new_store, run, sessions, shard_of};
use crate::store::Store;

/// Names a coordinator that does not exist, so that Citus' recovery leaves the transaction alone.
const PREPARED: &str = "citus_99_1_1_1";

/// The source part and the destination part of a rename of directory `id`, each with its node's session.
async fn parts(nodes: &[Client], from: i64, to: i64, id: i64) -> [(usize, String); 2] {
    let ((out, old), (into, new)) = (shard_of(nodes, from, "meta").await, shard_of(nodes, to, "meta").await);
    assert_ne!(out, into, "a rename between two nodes");
    let moved =
        format!("SELECT row_to_json(m)::text FROM mantle.meta m WHERE pid = {from} AND name = 'd{id}/' AND ts = 0");
    let row: String = nodes[out].query_one(&moved, &[]).await.expect("the row").get(0);
    let change = format!("'{{\"pid\": {to}, \"name\": \"moved/\", \"version\": 2}}'");
    let insert = format!(
        "INSERT INTO {new} SELECT (jsonb_populate_record(NULL::mantle.meta, '{}'::jsonb || {change})).*",
        row.replace('\'', "''")
    );
    [(out, format!("DELETE FROM {old} WHERE pid = {from} AND name = 'd{id}/'")), (into, insert)]
}

/// Whether the directory is found at its old path, and at its new path.
async fn found(
    store: &Store,
    name: &str,
    old: &[&str],
    new: &[&str],
) -> (Result<bool, ErrorCode>, Result<bool, ErrorCode>) {
    let at = async |path: &[&str]| {
        let found = store.resolve_path(name, path, true).await.map_err(|error| error.code())?;
        Ok(found.expect("the namespace").depth == path.len())
    };
    join(at(old), at(new)).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Citus cluster: tests/concurrency/test_citus.py runs it"]
async fn citus_lookups_wait_for_prepared_parts() {
    let nodes = sessions().await;
    let store = new_store();
    let (ns, name) = namespace(&store, &nodes).await;
    // A parent on the other node than the root, and two directories in the root that move there.
    let mut other = ns + 1;
    while shard_of(&nodes, other, "meta").await.0 == shard_of(&nodes, ns, "meta").await.0 {
        other += 1;
    }
    for id in [other, ns + 101, ns + 102] {
        mkdir(&store, ns, id).await.expect("a directory");
    }
    let parent = format!("d{other}");

    // If the source part commits first, the directory is at neither place; if the destination part does, at both.
    for (id, first) in [(ns + 101, 0), (ns + 102, 1)] {
        let parts = parts(&nodes, ns, other, id).await;
        let ((committed, statement), (prepared, held)) = (&parts[first], &parts[1 - first]);
        let directory = format!("d{id}");
        let (old, new) = ([directory.as_str()], [parent.as_str(), "moved"]);
        assert_eq!(found(&store, &name, &old, &new).await, (Ok(true), Ok(false)));
        run(&nodes[*prepared], held, &format!("PREPARE TRANSACTION '{PREPARED}'")).await;
        run(&nodes[*committed], statement, "COMMIT").await;
        // A plain read in PostgreSQL meanwhile.
        let shown = store.resolve_path(&name, &old, false).await.expect("an answer").expect("the namespace").depth == 1;
        assert_eq!(shown, first == 1, "nowhere, or at both places");
        assert_eq!(found(&store, &name, &old, &new).await, (Err(ErrorCode::Locked), Err(ErrorCode::Locked)));
        // A lookup shortly before the second commit waits for it.
        let end = async {
            nodes[*prepared].batch_execute(&format!("COMMIT PREPARED '{PREPARED}'")).await.expect("the second part");
        };
        let (answer, ()) = join(found(&store, &name, &old, &new), end).await;
        assert_eq!(answer, (Ok(false), Ok(true)));
        assert_eq!(found(&store, &name, &old, &new).await, (Ok(false), Ok(true)));
        // The next rename uses the same name.
        let gone = format!("DELETE FROM mantle.meta WHERE pid = {other} AND name = 'moved/'");
        nodes[0].batch_execute(&gone).await.expect("the directory is removed");
    }
}
