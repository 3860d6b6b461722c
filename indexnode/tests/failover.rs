//! A replica whose PostgreSQL fails over, is set back, or loses the slot: it continues where that is safe and is rebuilt where it
//! is not, so that it serves exactly what PostgreSQL has.
//!
//! Needs PostgreSQL's programs (tests/support/server.rs), and `-- --ignored`; `tests/run.py` runs them.
// In a test a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod support;

use std::{fs, path::PathBuf, time::Duration};

use mantle_index_client::{LookupContext, Query, Status, proto::Lineage};
use mantle_indexnode::postgres::sql;
use mantle_types::{Caller, Epoch, ErrorCode};
use support::{
    TestDatabase, TestGroup, connect, eventually, mkdir_in,
    server::{TestServer, TestServers, signal},
};

use tokio_postgres::types::PgLsn;

const WAIT: Duration = Duration::from_secs(20);

/// A primary, an index with one replica, and one directory.
struct Scene {
    // Dropped in this order: the index before its PostgreSQL.
    group: TestGroup,
    database: TestDatabase,
    primary: TestServer,
    servers: TestServers,
    ns: i64,
    before: Status,
}

impl Scene {
    async fn new() -> Self {
        let servers = TestServers::new();
        let primary = servers.primary("primary").await;
        let mut database = TestDatabase::create_in(primary.config.clone()).await;
        let mut group = TestGroup::of(1, &database);
        group.start_all();
        group.settled().await;
        let ns = database.create_namespace("failover").await;
        let mut scene = Self { before: group.settled().await.remove(0), group, database, primary, servers, ns };
        scene.mkdir("old").await;
        scene
    }

    /// Makes a directory, and waits for its acknowledgement.
    async fn mkdir(&mut self, name: &str) -> i64 {
        let (id, key) = self.database.mkdir(self.ns, self.ns, name).await;
        self.group.client.await_request(key, WAIT).await.expect("an acknowledgement");
        id
    }

    async fn outcome(&self, name: &str) -> Result<(), ErrorCode> {
        self.group.resolve("failover", &[name]).await.outcome.map_err(|e| e.code())
    }

    /// The answer to a lookup by a gateway that knows this lineage.
    async fn outcome_under(&self, lineage: Lineage) -> Result<(), ErrorCode> {
        let query = Query::new("failover", ["old"], Caller { uid: 0, gids: vec![] });
        let context = LookupContext { epoch: Epoch(0), lineages: [lineage].into() };
        let answer = self.group.client.resolve_one(context, query).await;
        answer.and_then(|found| found.outcome).map_err(|e| e.code())
    }

    async fn status(&self) -> Status {
        self.group.settled().await.remove(0)
    }

    /// Waits until the stream runs on a timeline.
    async fn streaming(&self, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        eventually(what, || async {
            let status = self.group.status(0).await?;
            (status.streaming && status.ready && wanted(&status)).then_some(status)
        })
        .await
    }

    /// Checks that the index was rebuilt for that reason, and that the directory `new` can be made then.
    async fn assert_rebuilt(&mut self, reason: &str, new: &str) -> Status {
        let epoch = self.before.epoch;
        let status = self.streaming("a rebuild", |status| status.epoch > epoch).await;
        let log = self.group.replicas[0].log();
        assert!(log.contains(reason), "no rebuild because of `{reason}`:\n{log}");
        assert_eq!(self.outcome("old").await, Ok(()));
        self.mkdir(new).await;
        assert_eq!(self.outcome(new).await, Ok(()));
        status
    }

    async fn stop_index(&mut self) {
        self.group.kill_all();
        let slot = self.database.slot();
        let inactive = "SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active_pid IS NULL";
        eventually("a free slot", || async { self.database.client.query_opt(inactive, &[&slot]).await.unwrap() }).await;
    }

    /// Waits until the slot's state on disk covers everything acknowledged.
    async fn persist_slot(&self) {
        let client = &self.database.client;
        let row = client.query_one("SELECT pg_current_wal_lsn()", &[]).await.unwrap();
        let lsn: PgLsn = row.get(0);
        self.group.client.await_lsn(0, mantle_types::Lsn(lsn.into()), WAIT).await.unwrap();
        let slot = self.database.slot();
        let confirmed = "SELECT FROM pg_replication_slots WHERE slot_name = $1 AND confirmed_flush_lsn >= $2";
        eventually("the slot", || async { client.query_opt(confirmed, &[&slot, &lsn]).await.unwrap() }).await;
        client.batch_execute("CHECKPOINT").await.unwrap();
    }

    /// Promotes the standby at the primary's address, with its slot, as with Patroni's permanent slots.
    async fn fail_over(&mut self, mut standby: TestServer) {
        self.primary.crash();
        standby.stop();
        standby.copy_slot(&self.primary, &self.database.slot());
        standby.promote_to(self.servers.port).await;
        std::mem::swap(&mut self.primary, &mut standby);
        self.database.reconnect().await;
    }

    /// Opens a session with the database.
    async fn primary_session(&self) -> tokio_postgres::Client {
        connect(&self.database.config).await
    }

    /// Copies the server's disk, and goes on with the original.
    async fn copy_disk(&mut self) -> PathBuf {
        self.primary.stop();
        let copy = self.servers.copy(&self.primary, "copy");
        self.primary.start().await;
        self.database.reconnect().await;
        self.streaming("the original", |_| true).await;
        copy
    }

    /// Writes WAL that has nothing to do with directories. Returns where it ends.
    async fn fill_wal_beyond(&self, lsn: PgLsn) -> PgLsn {
        let client = &self.database.client;
        loop {
            client.batch_execute("SELECT pg_switch_wal(); SELECT txid_current()").await.unwrap();
            let end: PgLsn = client.query_one("SELECT pg_current_wal_flush_lsn()", &[]).await.unwrap().get(0);
            if end > lsn {
                return end;
            }
        }
    }

    /// Starts the copy in place of the original, makes a directory in it, and lets it become longer than the original was. The
    /// index was away meanwhile.
    async fn replace_by(&mut self, copy: PathBuf, name: &str) {
        self.stop_index().await;
        let sql = "SELECT pg_current_wal_lsn()";
        let end: PgLsn = self.database.client.query_one(sql, &[]).await.unwrap().get(0);
        self.primary.stop();
        fs::remove_dir_all(&self.primary.data).unwrap();
        fs::rename(copy, &self.primary.data).unwrap();
        self.primary.start().await;
        self.database.reconnect().await;
        self.database.mkdir(self.ns, self.ns, name).await;
        self.fill_wal_beyond(end).await;
        self.group.start_all();
    }

    async fn standby(&self) -> TestServer {
        self.servers.standby(&self.primary, "standby").await
    }

    /// Waits until the standby has everything that the primary has.
    async fn caught_up(&self) {
        let sql =
            "SELECT FROM pg_stat_replication WHERE application_name = 'standby' AND flush_lsn = pg_current_wal_lsn()";
        eventually("the standby", || async { self.database.client.query_opt(sql, &[]).await.unwrap() }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL's programs"]
async fn replicas_follow_a_standby_that_has_all_they_applied() {
    let mut scene = Scene::new().await;
    let standby = scene.standby().await;
    scene.persist_slot().await;
    let id = scene.mkdir("streamed").await;
    scene.caught_up().await;
    let old = scene.before.sources[0].lineage.unwrap();
    assert_eq!(scene.outcome_under(old).await, Ok(()));
    scene.fail_over(standby).await;
    let after = scene.streaming("the new timeline", |status| status.sources[0].lineage.unwrap().timeline == 2).await;
    assert_eq!(after.epoch, scene.before.epoch, "no rebuild was needed");
    assert_eq!(
        after.sources[0].lineage.unwrap().system_identifier,
        scene.before.sources[0].lineage.unwrap().system_identifier
    );
    scene.group.assert_everywhere("failover", &["streamed"], id).await;
    // A gateway with another timeline than the index is refused.
    assert_eq!(scene.outcome_under(old).await, Err(ErrorCode::StaleEpoch));
    assert_eq!(scene.outcome_under(Lineage { timeline: 2, ..old }).await, Ok(()));
    let other_system = Lineage { timeline: 2, system_identifier: old.system_identifier + 1, ..old };
    assert_eq!(scene.outcome_under(other_system).await, Err(ErrorCode::StaleEpoch));
    assert_eq!(scene.outcome_under(Lineage { source: 7, ..old }).await, Ok(()), "a node that it does not read yet");
    scene.mkdir("on the new timeline").await;
    // The timeline is in the log and in snapshots: a restarted replica knows it.
    scene.stop_index().await;
    scene.group.start_all();
    let restarted = scene.status().await;
    assert_eq!((restarted.rebuilds, restarted.sources[0].lineage.unwrap().timeline), (0, 2));
    assert_eq!(scene.outcome("on the new timeline").await, Ok(()));
}

/// P35: a logical slot can be ahead of the database that a failover leaves.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL's programs"]
async fn replicas_drop_what_a_failover_lost() {
    let mut scene = Scene::new().await;
    let standby = scene.standby().await;
    scene.persist_slot().await;
    scene.caught_up().await;
    standby.set("primary_conninfo", "").await;
    let gone = "SELECT FROM pg_stat_replication WHERE application_name = 'standby'";
    eventually("a standby that lags", || async {
        scene.database.client.query(gone, &[]).await.unwrap().is_empty().then_some(())
    })
    .await;
    scene.mkdir("phantom").await;
    assert_eq!(scene.outcome("phantom").await, Ok(()));
    scene.fail_over(standby).await;
    let status = scene.assert_rebuilt("left timeline 1", "new").await;
    assert_eq!(status.sources[0].lineage.unwrap().timeline, 2);
    assert_eq!(scene.outcome("phantom").await, Err(ErrorCode::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL's programs"]
async fn replicas_rebuild_when_the_slot_was_recreated() {
    let mut scene = Scene::new().await;
    scene.stop_index().await;
    let slot = scene.database.slot();
    scene.database.mkdir(scene.ns, scene.ns, "missed").await;
    let client = &scene.database.client;
    client.execute("SELECT pg_drop_replication_slot($1)", &[&slot]).await.unwrap();
    client.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", &[&slot]).await.unwrap();
    scene.group.start_all();
    scene.assert_rebuilt("the slot was advanced", "new").await;
    assert_eq!(scene.outcome("missed").await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL's programs"]
async fn replicas_rebuild_when_the_slot_was_advanced_or_is_gone_or_lost() {
    let mut scene = Scene::new().await;
    let slot = scene.database.slot();
    for (name, how, reason) in [
        ("advanced", "SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", "the slot was advanced"),
        ("dropped", "SELECT pg_drop_replication_slot($1)", "the slot is gone"),
        ("lost", "SELECT $1::text", "the slot's WAL is gone"),
    ] {
        scene.before = scene.status().await;
        scene.stop_index().await;
        scene.database.mkdir(scene.ns, scene.ns, name).await;
        let client = &scene.database.client;
        client.execute(how, &[&slot]).await.unwrap();
        if name == "lost" {
            scene.primary.set("wal_keep_size", "0").await;
            scene.primary.set("max_slot_wal_keep_size", "1MB").await;
            eventually("a lost slot", || async {
                client.batch_execute("SELECT txid_current(); SELECT pg_switch_wal(); CHECKPOINT").await.unwrap();
                let sql = "SELECT FROM pg_replication_slots WHERE slot_name = $1 AND wal_status = 'lost'";
                client.query_opt(sql, &[&slot]).await.unwrap()
            })
            .await;
        }
        scene.group.start_all();
        scene.assert_rebuilt(reason, &format!("after {name}")).await;
        assert_eq!(scene.outcome(name).await, Ok(()));
    }
}

/// P28: no slot is created while the WAL that an unread slot keeps is unbounded; it is created once there is a bound.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL's programs"]
async fn replicas_make_no_slot_that_may_fill_the_disk() {
    let servers = TestServers::new();
    let primary = servers.primary("primary").await;
    primary.set("max_slot_wal_keep_size", "-1").await;
    let database = TestDatabase::create_in(primary.config.clone()).await;
    let mut group = TestGroup::of(1, &database);
    group.start_all();
    let refusal = "max_slot_wal_keep_size is -1";
    let refused = async || group.status(0).await.filter(|status| status.interruption.contains(refusal)).map(drop);
    eventually("a refusal in the status", refused).await;
    assert!(group.replicas[0].log().contains(refusal));
    let slots = "SELECT FROM pg_replication_slots";
    assert!(database.client.query(slots, &[]).await.unwrap().is_empty(), "a slot was made");
    primary.set("max_slot_wal_keep_size", "1GB").await;
    let status = group.settled().await.remove(0);
    assert_eq!((status.interruption.as_str(), status.streaming), ("", true));
    assert_eq!(database.client.query(slots, &[]).await.unwrap().len(), 1);
    group.kill_all();
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL's programs"]
async fn replicas_go_back_with_a_postgresql_that_was_restored() {
    let mut scene = Scene::new().await;
    scene.primary.stop();
    let copy = scene.servers.copy(&scene.primary, "copy");
    scene.primary.start().await;
    scene.database.reconnect().await;
    scene.mkdir("later").await;
    scene.primary.stop();
    fs::remove_dir_all(&scene.primary.data).unwrap();
    fs::rename(copy, &scene.primary.data).unwrap();
    scene.primary.start().await;
    scene.database.reconnect().await;
    scene.assert_rebuilt("was set back", "new").await;
    assert_eq!(scene.outcome("later").await, Err(ErrorCode::NotFound));
}

/// P35: a copy of the disk has the system identifier, the timeline and the slot of its original.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL's programs"]
async fn replicas_notice_a_copy_that_lacks_what_they_applied() {
    let mut scene = Scene::new().await;
    let copy = scene.copy_disk().await;
    scene.mkdir("later").await;
    scene.replace_by(copy, "instead").await;
    scene.assert_rebuilt("PostgreSQL has another history than the index", "new").await;
    assert_eq!(scene.outcome("later").await, Err(ErrorCode::NotFound));
    assert_eq!(scene.outcome("instead").await, Ok(()));
}

/// The same where the index has nothing of the original but its position.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL's programs"]
async fn replicas_notice_a_copy_that_has_what_they_never_saw() {
    let mut scene = Scene::new().await;
    let copy = scene.copy_disk().await;
    let end = scene.fill_wal_beyond(PgLsn::from(0)).await;
    scene.group.client.await_lsn(0, mantle_types::Lsn(end.into()), WAIT).await.unwrap();
    scene.replace_by(copy, "unseen").await;
    scene.assert_rebuilt("that the index never saw", "new").await;
    assert_eq!(scene.outcome("unseen").await, Ok(()));
}

/// After a crash the slot sends again what the index has, and that is no other history.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL's programs"]
async fn replicas_go_on_with_a_server_that_crashed() {
    let mut scene = Scene::new().await;
    scene.persist_slot().await;
    for name in ["first", "second"] {
        scene.mkdir(name).await;
        scene.primary.crash();
        scene.primary.start().await;
        scene.database.reconnect().await;
        let status = scene.streaming("the stream", |_| true).await;
        assert_eq!(status.epoch, scene.before.epoch, "a rebuild:\n{}", scene.group.replicas[0].log());
        assert_eq!(scene.outcome(name).await, Ok(()));
    }
    // A replica that knows what it saw last from its log.
    scene.stop_index().await;
    scene.primary.crash();
    scene.primary.start().await;
    scene.database.reconnect().await;
    scene.group.start_all();
    scene.mkdir("third").await;
    assert_eq!(scene.status().await.rebuilds, 0);
}

/// A slot belongs to its database, whatever that is called, and not to another one of its name.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL's programs"]
async fn replicas_follow_a_database_that_is_renamed_and_not_a_copy_in_its_place() {
    let mut scene = Scene::new().await;
    let old = scene.database.config.get_dbname().unwrap().to_owned();
    let new = format!("{old}_renamed");
    scene.stop_index().await;
    // Nobody may use the database meanwhile.
    scene.database.client = scene.primary.connect().await;
    let admin = scene.primary.connect().await;
    for sql in [format!("ALTER DATABASE {old} RENAME TO {new}"), format!("CREATE DATABASE {old} TEMPLATE {new}")] {
        eventually(&sql, || async { admin.batch_execute(&sql).await.ok() }).await;
    }
    scene.database.config.dbname(&new);
    scene.database.reconnect().await;

    scene.group.start_all();
    let refusal = format!("belongs to database {new}");
    let refused = async || scene.group.status(0).await.filter(|status| status.interruption.contains(&refusal));
    let status = eventually("a refusal in the status", refused).await;
    assert_eq!((status.rebuilds, status.streaming), (0, false), "the copy is not followed");

    scene.group.kill_all();
    scene.group.replicas[0].configure(|text| text.replace(&format!("{old:?}"), &format!("{new:?}")));
    scene.group.start_all();
    let status = scene.streaming("the renamed database", |_| true).await;
    assert_eq!(status.rebuilds, 0, "no rebuild was needed");
    scene.mkdir("later").await;
    assert_eq!(scene.outcome("later").await, Ok(()));
}

/// P3: a row that changes without a message looks to the index like a lost message.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL's programs"]
async fn replicas_find_a_lost_message() {
    let mut scene = Scene::new().await;
    scene.mkdir("removed").await;
    scene.mkdir("moved").await;
    for (name, sql) in [
        (
            "made",
            "INSERT INTO mantle.meta (pid, name, ts, ns, id, owner, grp, mode, version, explicit, created) \
                  VALUES ($1, 'unheard/', 0, $1, 90000, 0, 0, 493, 1, true, now())",
        ),
        (
            "moved",
            "UPDATE mantle.meta SET name = 'elsewhere/', version = version + 1 WHERE pid = $1 AND name = 'moved/'",
        ),
        ("removed", "DELETE FROM mantle.meta WHERE pid = $1 AND name = 'removed/'"),
    ] {
        scene.before = scene.status().await;
        assert_eq!(scene.database.client.execute(sql, &[&scene.ns]).await.unwrap(), 1);
        scene.assert_rebuilt("1 directories differ", &format!("after {name}")).await;
    }
    let outcomes = [scene.outcome("unheard").await, scene.outcome("elsewhere").await, scene.outcome("removed").await];
    assert_eq!(outcomes, [Ok(()), Ok(()), Err(ErrorCode::NotFound)]);
}

/// P5.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL's programs"]
async fn replicas_apply_nothing_that_a_synchronous_standby_lacks() {
    let mut scene = Scene::new().await;
    assert!(scene.status().await.sources[0].unprotected, "there is no standby yet");
    let standby = scene.standby().await;
    scene.primary.set("synchronous_standby_names", "standby").await;
    scene.streaming("a gate", |status| !status.sources[0].unprotected).await;
    scene.mkdir("flushed").await;

    let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'";
    let receiver: i32 = standby.connect().await.query_one(sql, &[]).await.unwrap().get(0);
    signal(receiver, "STOP");
    let (client, ns, id) = (scene.primary_session().await, scene.ns, scene.database.next_id());
    let commit = tokio::spawn(async move { mkdir_in(&client, ns, ns, "held", id).await });
    // The walsender has sent it, but it must not be applied, now or later.
    let held = scene.streaming("a held change", |s| s.sources[0].received_lsn > s.sources[0].released_lsn).await;
    for _ in 0..20 {
        let status = scene.status().await;
        assert!(status.sources[0].applied_lsn <= held.sources[0].released_lsn);
        assert_eq!(scene.outcome("held").await, Err(ErrorCode::NotFound));
        assert_eq!(scene.outcome("flushed").await, Ok(()), "lookups go on");
    }
    assert!(!commit.is_finished(), "PostgreSQL waits for the standby too");
    // The transaction has its commit record but has not ended, and none has a higher id: a read after a position would miss it,
    // and has to wait.
    let asker = scene.primary_session().await;
    let above: i64 = asker.query_one(sql::CUT, &[]).await.unwrap().get(1);
    let have_ended: bool = asker.query_one(sql::HAVE_ENDED, &[&above]).await.unwrap().get(0);
    assert!(!have_ended, "a transaction with a commit record was taken for ended");
    signal(receiver, "CONT");
    let key = commit.await.unwrap();
    scene.group.client.await_request(key, WAIT).await.unwrap();
    scene.group.assert_everywhere("failover", &["held"], id).await;

    // No standby is configured: everything passes again.
    scene.primary.set("synchronous_standby_names", "").await;
    scene.streaming("an open gate", |status| status.sources[0].unprotected).await;
    signal(receiver, "STOP");
    scene.mkdir("unprotected").await;
    signal(receiver, "CONT");
}
