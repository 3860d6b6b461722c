//! The search for the answer to a request (P19), which is on a worker that the retry does not know.

use std::time::Duration;

use futures::future::join;
use tokio::time::timeout;

use super::{
    APPLICATION, WAITS, calls, claim, end, mkdir_as, move_shard_of, namespace, new_store, run, sessions, shard_of,
};

/// Names a coordinator that does not exist, so that Citus' recovery leaves the transaction alone.
const PREPARED: &str = "citus_99_1_1_2";

/// How often the shard with the answer moves.
const MOVES: usize = 12;

/// The first attempt has recorded its answer, and its transaction is only prepared.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Citus cluster: tests/concurrency/test_citus.py runs it"]
async fn citus_an_answer_that_is_being_recorded_is_awaited() {
    let nodes = sessions().await;
    let store = new_store();
    let (ns, name) = namespace(&store, &nodes).await;
    // A directory on each worker, which the retry does not know.
    let mut pids = [ns; 2];
    while shard_of(&nodes, pids[1], "meta").await.0 == shard_of(&nodes, ns, "meta").await.0 {
        pids[1] += 1;
    }
    for pid in pids {
        let (at, shard) = shard_of(&nodes, pid, "requests").await;
        let worker = &nodes[at];
        let request = claim(ns);
        let held = format!(
            "INSERT INTO {shard} (ns, principal, request_id, request_hash, verb, pid, id, version)
             VALUES ({ns}, {}, '{}', {}, 'mkdir', {pid}, {pid}, 1)",
            request.principal, request.request, request.hash
        );
        let end = format!("PREPARE TRANSACTION '{PREPARED}'");
        run(worker, &held, &end).await;
        assert!(
            store.replay(claim(ns), &name).await.expect("an answer").is_none(),
            "another request waits for nothing"
        );
        let commit = async {
            let waits =
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event = 'transactionid'";
            let begins = async {
                while worker.query_one(waits, &[&APPLICATION]).await.expect("sessions").get::<_, i64>(0) == 0 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            timeout(WAITS.answer, begins).await.expect("the search waits");
            worker.batch_execute(&format!("COMMIT PREPARED '{PREPARED}'")).await.expect("the end");
        };
        let (answer, ()) = join(store.replay(request, &name), commit).await;
        let (found, written) = answer.expect("an answer").expect("the answer of the first attempt");
        assert_eq!((found, written.id, written.replayed), (ns.into(), pid.into(), true));
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Citus cluster: tests/concurrency/test_citus.py runs it"]
async fn citus_an_answer_is_found_while_its_shard_moves() {
    let nodes = sessions().await;
    let store = new_store();
    let (ns, name) = namespace(&store, &nodes).await;
    let recorded = claim(ns);
    mkdir_as(&store, recorded, ns + 1).await.expect("a directory");
    assert!(store.replay(claim(ns), &name).await.expect("an answer").is_none(), "another request has none");
    end(store, &nodes).await;
    assert_eq!(calls(&nodes, "replay").await, [0, 0, 0], "all shards were searched through the coordinator");
    assert_eq!(calls(&nodes, "replay_local").await, [0, 1, 1], "each worker searches once");

    let store = new_store();
    let moves = async {
        for _ in 0..MOVES {
            move_shard_of(&nodes, ns).await;
        }
    };
    tokio::pin!(moves);
    let mut searches = 0;
    loop {
        let search = store.replay(recorded, &name);
        let is_over = tokio::select! {
            () = &mut moves => true,
            answer = search => {
                let (_, written) = answer.expect("an answer").expect("it was recorded before");
                assert_eq!(written.id, (ns + 1).into());
                searches += 1;
                false
            }
        };
        if is_over {
            break;
        }
    }
    assert!(searches > MOVES, "only {searches} searches met {MOVES} moves");
}
