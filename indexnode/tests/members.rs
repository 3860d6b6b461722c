//! Members join, leave, lose their vote and transfer leadership while directories are made: every replica, learners included,
//! serves an acknowledged directory at once.
//!
//! Needs `MANTLE_TEST_DATABASE_URL`, and `-- --ignored`; `tests/run.py` runs it.
// In a test a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mantle_index_client::{IndexClient, Query, proto::MemberChange};
use mantle_types::{Caller, Epoch, ErrorCode};
use support::{ROOT, TestDatabase, TestGroup, eventually, load::Load};

const WAIT: Duration = Duration::from_secs(20);
const NAMESPACE: &str = "members";
const VOTERS: usize = 3;

/// Addresses of voters and of learners.
async fn members(group: &TestGroup) -> (Vec<String>, Vec<String>) {
    let members = group.client.members().await.unwrap();
    let of = |votes: bool| members.iter().filter(|m| m.voter == votes).map(|m| m.address.clone()).collect();
    (of(true), of(false))
}

async fn all_ready(group: &TestGroup) {
    eventually("ready replicas", || async {
        let all = group.client.status().await;
        all.iter().all(|(_, status)| status.as_ref().is_ok_and(|s| s.ready)).then_some(())
    })
    .await;
}

/// Three voters and a learner, the last replica.
async fn start_group(database: &TestDatabase) -> TestGroup {
    let mut group = TestGroup::with_learners(VOTERS, 1, database);
    group.start_all();
    all_ready(&group).await;
    eventually("three voters and a learner", || async {
        let (voters, learners) = members(&group).await;
        (voters.len() == VOTERS && learners == [group.replicas[VOTERS].address.clone()]).then_some(())
    })
    .await;
    group
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_change_their_members_under_load() {
    let mut database = TestDatabase::create().await;
    let mut group = start_group(&database).await;
    let ns = database.create_namespace(NAMESPACE).await;
    let down = Arc::new(AtomicUsize::new(usize::MAX));
    let load = Load::start(&database, &group, (NAMESPACE, ns), down.clone()).await;
    load.goes_on().await;
    let address = |i: usize| group.replicas[i].address.clone();
    let change = async |member: &str, change: MemberChange| group.client.change_member(member, change, WAIT).await;

    // Each voter leads in turn.
    for _ in 0..VOTERS {
        let next = (group.leader().await + 1) % VOTERS;
        change(&address(next), MemberChange::Lead).await.unwrap();
        assert_eq!(group.leader().await, next);
        load.goes_on().await;
    }

    // Harmful changes are refused.
    let leader = group.leader().await;
    for (member, wanted) in [
        (address(leader), MemberChange::Demote),
        (address(leader), MemberChange::Remove),
        (address(VOTERS), MemberChange::Lead),
        ("127.0.0.1:1".to_owned(), MemberChange::Promote),
    ] {
        assert_eq!(
            change(&member, wanted).await.unwrap_err().code(),
            ErrorCode::InvalidArgument,
            "{wanted:?} {member}"
        );
    }

    // A voter becomes a learner and a voter again.
    let follower = (leader + 1) % VOTERS;
    change(&address(follower), MemberChange::Demote).await.unwrap();
    assert_eq!(members(&group).await.0.len(), VOTERS - 1);
    load.goes_on().await;
    change(&address(follower), MemberChange::Promote).await.unwrap();
    change(&address(follower), MemberChange::Promote).await.expect("done already is done");
    load.goes_on().await;

    // The learner replaces a voter that is gone for good, and leads.
    down.store(follower, Ordering::Release);
    change(&address(VOTERS), MemberChange::Promote).await.unwrap();
    let gone = address(follower);
    group.replicas[follower].kill();
    group.client.change_member(&gone, MemberChange::Remove, WAIT).await.unwrap();
    let newcomer = group.replicas[VOTERS].address.clone();
    group.client.change_member(&newcomer, MemberChange::Lead, WAIT).await.unwrap();
    load.goes_on().await;
    let (voters, learners) = members(&group).await;
    assert_eq!((voters.len(), learners.len()), (VOTERS, 0));
    assert!(voters.contains(&newcomer) && !voters.contains(&gone));

    let first_id = load.first_id;
    let made = load.end().await;
    for i in (0..=VOTERS).filter(|i| *i != follower) {
        for n in (0..made).step_by(7).chain([made - 1]) {
            let found = group.resolve_on(i, NAMESPACE, &[&format!("d{n}")]).await;
            assert_eq!(found.id.as_i64(), first_id + n as i64, "replica {i}, d{n}");
        }
    }
    drop(group);
    database.drop().await;
}

/// A leader without a quorum's answers refuses every proposal for a moment. A membership change waits for them, as any other
/// command does, and finally fails with an error that allows to repeat it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_change_their_members_when_the_quorum_is_back() {
    let mut database = TestDatabase::create().await;
    let group = start_group(&database).await;
    database.create_namespace(NAMESPACE).await;
    let leader = group.leader().await;
    let learner = group.replicas[VOTERS].address.clone();
    let others = (0..VOTERS).filter(|i| *i != leader);
    others.clone().for_each(|i| group.replicas[i].freeze());
    let of_leader = IndexClient::connect_lazy(vec![group.replicas[leader].address.clone()], None).unwrap();
    let impatient = of_leader.with_resolve_timeout(Duration::from_millis(200));
    eventually("a leader without a lease", || async {
        let query = Query::new(NAMESPACE, [""; 0], Caller { uid: ROOT, gids: vec![] });
        impatient.resolve_one(Epoch(0), query).await.err()
    })
    .await;

    let remove = async |limit: Duration| group.client.change_member(&learner, MemberChange::Remove, limit).await;
    let early = remove(Duration::from_millis(500)).await.unwrap_err();
    assert!(early.code() == ErrorCode::AwaitTimeout || early.code() == ErrorCode::IndexUnavailable, "{early}");
    others.for_each(|i| group.replicas[i].thaw());
    remove(WAIT).await.unwrap();
    assert_eq!(members(&group).await.1, Vec::<String>::new());
    drop(group);
    database.drop().await;
}
