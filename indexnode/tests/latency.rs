//! Measures the time from the commit of a directory to its acknowledgement by three replicas: one client, one mkdir at a time.
//!
//! A measurement, not a check. Run it on a quiet machine in release mode, with `--ignored --nocapture`.

#[allow(dead_code)]
mod support;

use std::time::{Duration, Instant};

use support::{TestDatabase, TestGroup};

const DIRECTORIES: usize = 2000;

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{what}: p50 {:?} p90 {:?} p99 {:?} max {:?}", at(50), at(90), at(99), at(100));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn acknowledgement_of_mkdir() {
    let mut database = TestDatabase::create().await;
    let mut group = TestGroup::new(&database);
    group.start_all();
    group.settled().await;
    let ns = database.create_namespace("latency").await;
    let (mut commits, mut waits, mut lookups) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..DIRECTORIES {
        let name = format!("d{i}");
        let started = Instant::now();
        let (id, key) = database.mkdir(ns, ns, &name).await;
        let committed = Instant::now();
        group.client.await_request(key, Duration::from_secs(10)).await.unwrap();
        let acknowledged = Instant::now();
        let found = group.resolve("latency", &[&name]).await;
        assert_eq!(found.id.as_i64(), id);
        commits.push(committed - started);
        waits.push(acknowledged - committed);
        lookups.push(acknowledged.elapsed());
    }
    report("commit", commits);
    report("commit to acknowledgement", waits);
    report("lookup, any replica", lookups);
    drop(group);
    database.drop().await;
}
