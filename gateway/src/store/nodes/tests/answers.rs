//! An attempt of a request has recorded its answer on a worker, and its transaction is only prepared (P19). Whoever looks for
//! the answer waits for its end.

use std::time::Duration;

use futures::future::join;

use super::{APPLICATION, WAITS, claim, config, prepared_parts, sessions};
use crate::store::Store;

/// Names a coordinator that does not exist, so that Citus' recovery leaves the transaction alone.
const PREPARED: &str = "citus_99_1_1_2";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Citus cluster: tests/concurrency/test_citus.py runs it"]
async fn citus_an_answer_that_is_being_recorded_is_awaited() {
    let nodes = sessions().await;
    let store = Store::new(&config(), mantle_tls::PostgresConnector::load(None).expect("no files"), APPLICATION, WAITS)
        .expect("a store");
    let ns = store.allocate_ids("citus-test", 1000).await.expect("ids").first;
    let name = format!("answers-{ns}");
    let create = "SELECT code FROM mantle.create_namespace(0, $1, $2, 0, 0, 493, gen_random_uuid(), 0)";
    nodes[0].execute(create, &[&name, &ns]).await.expect("a namespace");
    // A directory on each worker, which the retry does not know.
    let mut pids = [ns; 2];
    while prepared_parts::shard_of(&nodes, pids[1], "meta").await.0
        == prepared_parts::shard_of(&nodes, ns, "meta").await.0
    {
        pids[1] += 1;
    }
    for pid in pids {
        let (at, shard) = prepared_parts::shard_of(&nodes, pid, "requests").await;
        let worker = &nodes[at];
        let request = claim(ns);
        let held = format!(
            "INSERT INTO {shard} (ns, principal, request_id, request_hash, verb, pid, id, version)
             VALUES ({ns}, {}, '{}', {}, 'mkdir', {pid}, {pid}, 1)",
            request.principal, request.request, request.hash
        );
        let end = format!("PREPARE TRANSACTION '{PREPARED}'");
        prepared_parts::run(worker, &held, &end).await;
        assert!(
            store.replay(claim(ns), &name).await.expect("an answer").is_none(),
            "another request waits for nothing"
        );
        let commit = async {
            let waits =
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event = 'transactionid'";
            while worker.query_one(waits, &[&APPLICATION]).await.expect("sessions").get::<_, i64>(0) == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            worker.batch_execute(&format!("COMMIT PREPARED '{PREPARED}'")).await.expect("the end");
        };
        let (answer, ()) = join(store.replay(request, &name), commit).await;
        let (found, written) = answer.expect("an answer").expect("the answer of the first attempt");
        assert_eq!((found, written.id, written.replayed), (ns.into(), pid.into(), true));
    }
}
