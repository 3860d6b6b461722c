//! Three replicas over a real PostgreSQL: acknowledged changes survive the loss of processes and disks.
//!
//! Needs `MANTLE_TEST_DATABASE_URL`: a superuser's URL (with a password) of a PostgreSQL with the extension installed and
//! `wal_level = logical`, and `-- --ignored`. Plain `cargo test` counts them as ignored; `tests/run.py` runs them against
//! the stack's PostgreSQL.

#[allow(dead_code)]
mod support;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use mantle_index_client::RenameRequest;
use mantle_indexnode::{postgres::copy, progress::RebuildProgress};
use mantle_types::{
    Caller, ErrorCode, Lsn, NamespaceId, RequestKey,
    message::{Cause, DirectoryOp, encode},
};
use support::{ROOT, TestDatabase, TestGroup, eventually};
use tokio::sync::mpsc;
use tokio_postgres::types::PgLsn;
use uuid::Uuid;

const WAIT: Duration = Duration::from_secs(20);
/// As in the servers' settings.
const EPOCH_LEASE: Duration = Duration::from_secs(2);

async fn acknowledged_mkdir(database: &mut TestDatabase, group: &TestGroup, ns: i64, pid: i64, name: &str) -> i64 {
    let (id, key) = database.mkdir(ns, pid, name).await;
    group.client.await_request(key, WAIT).await.expect("an acknowledgement");
    id
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_keep_what_was_acknowledged_over_crashes_and_lost_disks() {
    let mut database = TestDatabase::create().await;
    let mut group = TestGroup::new(&database);
    group.start_all();
    let before = group.settled().await;
    let ns = database.create_namespace("survivors").await;
    let mut made = Vec::new();
    for i in 0..150 {
        let name = format!("d{i}");
        made.push((acknowledged_mkdir(&mut database, &group, ns, ns, &name).await, name));
    }
    let (last, name) = made.last().unwrap().clone();
    group.assert_everywhere("survivors", &[&name], last).await;

    // The leader dies; the others continue and have everything.
    let leader = group.leader().await;
    group.replicas[leader].kill();
    let id = acknowledged_mkdir(&mut database, &group, ns, last, "below").await;
    for i in (0..3).filter(|i| *i != leader) {
        assert_eq!(group.resolve_on(i, "survivors", &[&name, "below"]).await.id.as_i64(), id);
    }
    group.replicas[leader].start();
    group.settled().await;
    group.assert_everywhere("survivors", &[&name, "below"], id).await;

    // A disk is lost: the replica comes back under a new id, as a voter, in place of the old one.
    let victim = (group.leader().await + 1) % 3;
    let old_id = group.status(victim).await.unwrap().node_id;
    group.replicas[victim].kill();
    group.replicas[victim].wipe();
    let installed = |group: &TestGroup| group.replicas[victim].log().matches("snapshot installed").count();
    let installed_before = installed(&group);
    group.replicas[victim].start();
    let after = group.settled().await;
    assert_eq!(installed(&group), installed_before + 1, "the log begins after its first snapshot");
    assert_eq!(after[0].cluster_id, before[0].cluster_id);
    assert!(after.iter().all(|s| s.members.iter().all(|m| !m.starts_with(&format!("{old_id}@")))));
    group.assert_everywhere("survivors", &[&name, "below"], id).await;

    // All disks are lost: a new cluster under a higher epoch, rebuilt from PostgreSQL.
    group.kill_all();
    group.replicas.iter().for_each(|r| r.wipe());
    group.start_all();
    let rebuilt = group.settled().await;
    assert_ne!(rebuilt[0].cluster_id, before[0].cluster_id);
    assert!(rebuilt[0].epoch > before[0].epoch);
    for (id, name) in &made {
        assert_eq!(group.resolve_on(0, "survivors", &[name]).await.id.as_i64(), *id);
    }

    // Everything restarts.
    group.kill_all();
    group.start_all();
    let restarted = group.settled().await;
    assert_eq!(restarted[0].cluster_id, rebuilt[0].cluster_id);
    assert_eq!(restarted.iter().map(|status| status.rebuilds).sum::<u64>(), 0, "a restart needs no rebuild");
    group.assert_everywhere("survivors", &[&name, "below"], id).await;
    acknowledged_mkdir(&mut database, &group, ns, id, "again").await;

    // Two disks are lost: the third cannot have a quorum, and leaves its cluster.
    for i in [0, 1] {
        group.replicas[i].kill();
        group.replicas[i].wipe();
        group.replicas[i].start();
    }
    let replaced = group.settled().await;
    assert_ne!(replaced[0].cluster_id, rebuilt[0].cluster_id);
    group.assert_everywhere("survivors", &[&name, "below"], id).await;
    drop(group);
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_lock_renames_and_await_positions() {
    let mut database = TestDatabase::create().await;
    let mut group = TestGroup::new(&database);
    group.start_all();
    group.settled().await;
    let ns = database.create_namespace("renames").await;
    let (source, key) = database.mkdir(ns, ns, "from").await;
    group.client.await_request(key, WAIT).await.unwrap();

    // A position can be awaited although no directory changes.
    let sql = "SELECT pg_current_wal_flush_lsn() FROM pg_switch_wal()";
    let lsn: PgLsn = database.client.query_one(sql, &[]).await.unwrap().get(0);
    group.client.await_lsn(0, Lsn(lsn.into()), WAIT).await.unwrap();

    let request = RequestKey { principal: ROOT, ns: NamespaceId::from(ns), id: Uuid::new_v4() };
    let rename = RenameRequest {
        request,
        namespace: "renames".into(),
        source: vec!["from".into()],
        destination: vec!["to".into()],
        caller: Caller { uid: ROOT, gids: vec![] },
        lock_ms: 60_000,
        overwrite: false,
        remove: false,
        below: Vec::new(),
    };
    let first = group.client.prepare_rename(rename.clone()).await.unwrap();
    assert_eq!(first.source_id.as_i64(), source);
    let other = RenameRequest { request: RequestKey { id: Uuid::new_v4(), ..request }, ..rename.clone() };
    assert_eq!(group.client.prepare_rename(other.clone()).await.unwrap_err().code(), ErrorCode::Locked);

    // The same key again: the older attempt is aborted in PostgreSQL, the newer one holds the lock.
    let second = group.client.prepare_rename(rename.clone()).await.unwrap();
    assert!(second.attempt > first.attempt);
    let aborted = "SELECT state FROM mantle.rename_attempts WHERE attempt = $1";
    let row = database.client.query_one(aborted, &[&(first.attempt as i64)]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), "aborted");
    group.client.release_rename(request, second.attempt).await.unwrap();

    // An unused lock expires, after its abort record is written.
    let short = RenameRequest { lock_ms: 200, ..other };
    let abandoned = group.client.prepare_rename(short).await.unwrap();
    eventually("the lock to expire", || async {
        let status = group.status(group.leader().await).await?;
        (status.locks == 0).then_some(())
    })
    .await;
    let row = database.client.query_one(aborted, &[&(abandoned.attempt as i64)]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), "aborted");

    // A lost slot causes a rebuild.
    let epoch = group.status(0).await.unwrap().epoch;
    let drop_slot = "SELECT pg_terminate_backend(active_pid, 5000), pg_drop_replication_slot(slot_name) \
                     FROM pg_replication_slots WHERE database = current_database()";
    eventually("the slot to be dropped", || async { database.client.query(drop_slot, &[]).await.ok() }).await;
    eventually("a rebuild", || async {
        let status = group.status(group.leader().await).await?;
        (status.epoch > epoch && status.ready).then_some(())
    })
    .await;
    let (id, key) = database.mkdir(ns, source, "below").await;
    group.client.await_request(key, WAIT).await.unwrap();
    group.assert_everywhere("renames", &["from", "below"], id).await;
    drop(group);
    database.drop().await;
}

/// P5: a cluster that is founded while the old one lives on serves only when no gateway asks the old one any more.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_of_a_second_founding_wait_for_the_leases_under_the_first() {
    let database = TestDatabase::create().await;
    let mut abandoned = TestGroup::new(&database);
    abandoned.start_all();
    abandoned.settled().await;
    let mut founded = TestGroup::new(&database);
    founded.start_all();
    let epoch = || async {
        let row = database.client.query_one("SELECT epoch FROM mantle.index_groups WHERE index_group = 1", &[]).await;
        (row.unwrap().get::<_, i64>(0) > 1).then_some(())
    };
    eventually("another epoch", epoch).await;
    let raised = Instant::now();
    // The test sees the raise later than it happened, so the measured time is at most the real one.
    eventually("the new group to serve", || async { founded.status(0).await.filter(|s| s.ready).map(|_| ()) }).await;
    let waited = raised.elapsed();
    assert!(waited >= EPOCH_LEASE, "served {waited:?} after the epoch was raised");
    abandoned.kill_all();
    founded.kill_all();
    database.drop().await;
}

/// A message with this number of finished requests.
const MESSAGE_REQUESTS: usize = 60_000;

/// A message with invented requests, of a namespace of the group.
fn requests_done(ns: i64) -> Vec<u8> {
    let done = |_| {
        let request = RequestKey { principal: ROOT, ns: NamespaceId::from(ns), id: Uuid::new_v4() };
        DirectoryOp::Done { cause: Cause { request, attempt: 0 } }
    };
    encode(&(0..MESSAGE_REQUESTS).map(done).collect::<Vec<_>>())
}

/// P28: a log entry is capped in bytes. A larger transaction is split over several, and one that is larger than the leader may
/// hold causes a rebuild. Either is acknowledged when all of it is applied.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_take_transactions_of_any_size() {
    let mut database = TestDatabase::create().await;
    let mut group = TestGroup::new(&database);
    group.start_all();
    group.settled().await;
    let ns = database.create_namespace("large").await;
    let (top, key) = database.mkdir(ns, ns, "top").await;
    group.client.await_request(key, WAIT).await.unwrap();
    let before = group.status(group.leader().await).await.unwrap();
    let filler = requests_done(ns);
    let emit = "SELECT pg_logical_emit_message(true, 'mantle', $1::bytea)";

    for (messages, is_rebuilt) in [(4, false), (22, true)] {
        let name = |end: &str| format!("{end} of {messages}");
        database.client.batch_execute("BEGIN").await.unwrap();
        let (first, key) = database.mkdir(ns, top, &name("first")).await;
        for _ in 0..messages {
            database.client.query_one(emit, &[&filler]).await.unwrap();
        }
        let (last, _) = database.mkdir(ns, first, &name("last")).await;
        // The many requests make the leader forget a finished one soon.
        let (told, committed) =
            tokio::join!(group.client.await_request(key, WAIT), database.client.batch_execute("COMMIT"));
        committed.unwrap();
        let end: PgLsn = database.client.query_one("SELECT pg_current_wal_flush_lsn()", &[]).await.unwrap().get(0);
        if is_rebuilt {
            eventually("a rebuild", || async {
                let status = group.status(group.leader().await).await?;
                (status.epoch > before.epoch && status.ready).then_some(())
            })
            .await;
            let log = group.replicas[group.leader().await].log();
            assert!(log.contains("bytes of changes to directories"), "{log}");
            group.client.await_lsn(0, Lsn(end.into()), WAIT).await.unwrap();
        } else {
            // All directories of the transaction are applied by then; the position comes with the last entry.
            told.unwrap();
            group.assert_everywhere("large", &["top", &name("first"), &name("last")], last).await;
            group.client.await_lsn(0, Lsn(end.into()), WAIT).await.unwrap();
            let after = group.status(group.leader().await).await.unwrap();
            assert_eq!(after.epoch, before.epoch);
            assert!(after.applied_index >= before.applied_index + 4, "{} bytes in one entry", messages * filler.len());
        }
        group.assert_everywhere("large", &["top", &name("first"), &name("last")], last).await;
    }
    drop(group);
    database.drop().await;
}

/// The copy of a rebuild does not read objects, also if the table has no statistics, as after a load.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_copy_directories_without_reading_objects() {
    const DIRECTORIES: i64 = 20;
    const OBJECTS: i32 = 8_000;
    const NO_STATISTICS: &str = "ALTER TABLE mantle.meta SET (autovacuum_enabled = off); \
                                 DELETE FROM pg_statistic WHERE starelid = 'mantle.meta'::regclass";
    const PUT: &str = "SELECT mantle.import_objects(0, $1, array_fill($2::bigint, ARRAY[$3::integer]), \
                       ARRAY(SELECT 'o' || n FROM generate_series(1, $3) n), array_fill(1::bigint, ARRAY[$3]), $4, true, now())";
    const READ: &str =
        "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relid = 'mantle.meta'::regclass AND n_tup_ins >= $1";
    let mut database = TestDatabase::create().await;
    database.client.batch_execute(NO_STATISTICS).await.unwrap();
    let ns = database.create_namespace("objects").await;
    for n in 0..DIRECTORIES {
        database.mkdir(ns, ns, &format!("d{n}")).await;
    }
    database.client.query(PUT, &[&ns, &ns, &OBJECTS, &database.next_id]).await.unwrap();
    let read = || async {
        // A session reports its counters at the end of a transaction.
        database.client.batch_execute("SELECT pg_stat_force_next_flush()").await.unwrap();
        Some(database.client.query_opt(READ, &[&i64::from(OBJECTS)]).await.unwrap()?.get::<_, i64>(0))
    };
    let before = eventually("what was put to be counted", read).await;

    let (chunks, mut copied) = mpsc::channel(1);
    let progress = RebuildProgress::default();
    copy::begin(&database.client, None).await.unwrap();
    let namespaces = [NamespaceId::from(ns)];
    let (count, first) =
        tokio::join!(copy::copy_directories(&database.client, &namespaces, chunks, &progress), copied.recv());
    assert_eq!((count.unwrap(), first.unwrap().len()), (DIRECTORIES as u64 + 1, DIRECTORIES as usize + 1));
    let after = read().await.unwrap();
    assert!(after < before + i64::from(OBJECTS), "{} rows were read", after - before);
    database.drop().await;
}

/// All files and folders below a folder, with their modes.
fn modes(folder: &Path) -> Vec<(PathBuf, u32)> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let each = entries.flat_map(|entry| {
        let below = if entry.file_type().expect("a kind").is_dir() { modes(&entry.path()) } else { Vec::new() };
        [(entry.path(), entry.metadata().expect("a mode").mode())].into_iter().chain(below)
    });
    each.collect()
}

/// `CARELESS` is the usual state of a service that nobody has protected.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_keep_their_files_from_other_users_of_the_machine() {
    let database = TestDatabase::create().await;
    let mut group = TestGroup::new(&database);
    group.start_all();
    group.settled().await;
    let replica = &group.replicas[0];
    let files = modes(replica.data());
    assert!(files.iter().any(|(path, _)| path.is_file()) && files.iter().any(|(path, _)| path.is_dir()), "{files:?}");
    let open: Vec<_> = files.iter().filter(|(_, mode)| mode & 0o007 != 0).collect();
    assert!(open.is_empty(), "{open:?}");

    let limits = fs::read_to_string(format!("/proc/{}/limits", replica.process_id())).unwrap();
    let of_files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let (soft, hard) = of_files.trim().split_once(' ').unwrap();
    assert_eq!(Some(soft), hard.split_whitespace().next(), "{of_files}");
    group.kill_all();
    database.drop().await;
}
