//! Directed histories: known ways in which a read goes back in time, two failovers to a standby that lacks something, and
//! folders that go back. Each fails when its protection is left out.

use crate::{
    disk::Part,
    network::HostId,
    postgres::SlotAfter,
    run::{DiskDirectory, Report, report},
    world::World,
};

const UP_MS_MAX: u64 = 60_000;
const PATH: &str = "a";
/// The directories whose entries are lost: more entries than a new leader writes at once.
const LOST: [&str; 5] = [PATH, "b", "c", "d", "e"];

pub type Scenario = fn(&mut World);

/// Name, number of voters and learners, history.
pub const SCENARIOS: [(&str, (usize, usize), Scenario); 9] = [
    ("new_leader_before_its_first_commit", (3, 0), new_leader_before_its_first_commit),
    ("follower_asks_an_old_leader", (5, 0), follower_asks_an_old_leader),
    ("snapshot_is_installed_meanwhile", (3, 0), snapshot_is_installed_meanwhile),
    ("vote_after_a_restart", (3, 0), vote_after_a_restart),
    ("copy_of_what_may_be_lost", (3, 0), copy_of_what_may_be_lost),
    ("timeline_without_what_is_applied", (3, 0), timeline_without_what_is_applied),
    ("nobody_remembers_what_went_back", (3, 0), nobody_remembers_what_went_back),
    ("folder_goes_back", (3, 0), folder_goes_back),
    ("learner_differs", (3, 1), learner_differs),
];

/// Plays one scenario.
pub fn play(name: &str, seed: u64, directory: &DiskDirectory, prints: bool) -> Report {
    let found = SCENARIOS.iter().find(|(n, ..)| *n == name).expect("a scenario's name");
    let mut world = World::new(seed, found.1, true, &directory.0, prints);
    (0..found.1.0 + found.1.1).for_each(|host| world.start(host));
    let is_up = world.run_until(UP_MS_MAX, |world| world.is_complete() && world.leader().is_some());
    assert!(is_up, "the group does not come up: {:?}", world.violation);
    let booted = world.now_ms;
    found.2(&mut world);
    if world.violation.is_none() {
        world.check_answers();
    }
    report(&world, booted, 0)
}

fn run_for(world: &mut World, ms: u64) {
    world.run_until(ms, |_| false);
}

fn leader(world: &World) -> HostId {
    world.leader().expect("the group has a leader")
}

fn others(world: &World, than: &[HostId]) -> Vec<HostId> {
    (0..world.hosts.len()).filter(|host| !than.contains(host)).collect()
}

fn ask_always(world: &World, hosts: &[HostId]) {
    for host in hosts {
        let host = *host;
        world.start_client(host, |client| client.keep_asking(host, vec![PATH.to_owned()]));
    }
}

fn make(world: &World, leader: HostId) {
    world.start_client(99, |client| client.make(PATH.to_owned(), leader));
}

fn acknowledged(world: &World) -> bool {
    world.history.counts().2 > 0
}

/// The leader applies and acknowledges an entry, and is cut off before the others learn that it is committed. One of them leads
/// next. It does not know what is committed until its own term's first entry is.
fn new_leader_before_its_first_commit(world: &mut World) {
    let old = leader(world);
    let rest = others(world, &[old]);
    ask_always(world, &rest);
    run_for(world, 50);
    make(world, old);
    let has_applied = |world: &mut World| {
        let samples = world.samples();
        samples.iter().any(|s| s.host == old && s.records.len() > 1)
    };
    world.run_until(2000, has_applied);
    world.set_split(&[old], &rest, true);
    rest.iter().for_each(|host| *world.hosts[*host].flush_ms_max.lock() = 300);
    world.run_until(2000, |world| acknowledged(world));
    run_for(world, 5000);
}

/// A leader and one follower are on the smaller side of a partition. The other side has a new leader and acknowledges a change.
/// The follower asks the leader that it knows.
fn follower_asks_an_old_leader(world: &mut World) {
    let old = leader(world);
    let follower = others(world, &[old])[0];
    let majority = others(world, &[old, follower]);
    ask_always(world, &[follower]);
    run_for(world, 50);
    world.set_split(&[old, follower], &majority, true);
    world.run_until(10_000, |world| world.leader().is_some_and(|host| majority.contains(&host)));
    make(world, leader(world));
    world.run_until(3000, |world| acknowledged(world));
    run_for(world, 1000);
}

/// A follower is cut off until it needs a snapshot. A client asks it while it installs the snapshot, which holds everything.
fn snapshot_is_installed_meanwhile(world: &mut World) {
    let behind = others(world, &[leader(world)])[0];
    let rest = others(world, &[behind]);
    world.set_split(&[behind], &rest, true);
    let mut rng = rand::SeedableRng::seed_from_u64(7);
    world.start_clients(6, &mut rng);
    let entries = |world: &World| world.samples().iter().map(|s| s.applied.index).max().unwrap_or(0);
    let wanted = entries(world) + 100;
    assert!(world.run_until(30_000, |world| entries(world) >= wanted), "too little happens");
    world.stop_clients();
    assert!(world.run_until(10_000, |world| world.now_ms % 3000 == 0 && is_at_rest(world, &rest)), "no rest");
    rest.iter().for_each(|host| world.hosts[*host].make_snapshot());
    run_for(world, 50);
    let deepest = world.server.with(|postgres| {
        let tree = postgres.tree();
        tree.records().filter_map(|record| tree.path(record.id)).max_by_key(Vec::len)
    });
    world.start_client(behind, |client| client.keep_asking(behind, deepest.unwrap_or_default()));
    world.set_split(&[behind], &rest, false);
    let last = entries(world);
    let is_behind = |world: &World| world.samples().iter().any(|s| s.host == behind && s.applied.index < last);
    assert!(is_behind(world), "the follower was not cut off");
    assert!(world.run_until(20_000, |world| !is_behind(world)) || world.violation.is_some(), "it stays behind");
    run_for(world, 300);
}

fn is_at_rest(world: &World, hosts: &[HostId]) -> bool {
    let samples = world.samples();
    let mut applied = samples.iter().filter(|s| hosts.contains(&s.host)).map(|s| s.applied);
    let first = applied.next();
    applied.all(|other| Some(other) == first)
}

/// A follower grants the leader its lease, dies, and restarts at once. A third replica that cannot reach the leader asks for
/// its vote. The leader, cut off from both, relies on its lease.
fn vote_after_a_restart(world: &mut World) {
    let old = leader(world);
    let rest = others(world, &[old]);
    let (voter, candidate) = (rest[0], rest[1]);
    ask_always(world, &[old]);
    world.set_split(&[old], &[candidate], true);
    run_for(world, 1500);
    world.kill(voter, false);
    world.set_split(&[old], &[voter], true);
    world.start(voter);
    if world.run_until(1200, |world| leader(world) != old) {
        make(world, candidate);
    }
    run_for(world, 2000);
}

/// The slot is gone, so the index is rebuilt. The standby is away while the new slot is made, and a change has just committed.
/// Then the standby, which does not have that change, is promoted.
fn copy_of_what_may_be_lost(world: &mut World) {
    world.server.with(|postgres| {
        postgres.restart();
        postgres.slot = None;
    });
    let epoch = world.server.with(|postgres| postgres.group().0);
    let begins = |world: &mut World| world.samples().iter().any(|s| s.epoch > epoch);
    assert!(world.run_until(10_000, begins), "no rebuild begins");
    world.server.with(|postgres| postgres.standby.leave(3000));
    make(world, leader(world));
    run_for(world, 500);
    world.fail_over(SlotAfter::Gone);
    ask_always(world, &others(world, &[]));
    let is_back = |world: &mut World| world.server.with(|postgres| postgres.group().0 > epoch) && world.is_complete();
    world.run_until(10_000, is_back);
    run_for(world, 500);
}

/// Commits do not wait for the standby. A change is applied and acknowledged; then the standby, which does not have it, is
/// promoted.
fn timeline_without_what_is_applied(world: &mut World) {
    world.server.with(|postgres| postgres.standby.is_required = false);
    // The leader reads the setting again after a while.
    run_for(world, 1500);
    world.server.with(|postgres| postgres.standby.leave(10_000));
    make(world, leader(world));
    assert!(world.run_until(3000, |world| acknowledged(world)), "the change is not acknowledged");
    world.fail_over(SlotAfter::Kept);
    ask_always(world, &others(world, &[]));
    run_for(world, 1500);
    assert!(world.violation.is_some() || world.run_until(5000, |world| world.is_quiet()), "the index is not rebuilt");
}

/// The voters that follow.
fn followers(world: &World) -> Vec<HostId> {
    others(world, &[leader(world)]).into_iter().filter(|host| !world.hosts[*host].is_learner()).collect()
}

/// The hosts of a history in which an entry is lost.
struct Loss {
    old_leader: HostId,
    restored: HostId,
    behind: HostId,
    learner: Option<HostId>,
}

/// A follower's folder goes back by acknowledged changes, which only the leader and a learner, if there is one, know beside
/// it: the other follower was cut off. Then the leader dies and the learner is cut off. The two followers can elect a leader.
fn lose_an_entry(world: &mut World) -> Loss {
    let old_leader = leader(world);
    let learner = (0..world.hosts.len()).find(|host| world.hosts[*host].is_learner());
    let (restored, behind) = (followers(world)[0], followers(world)[1]);
    world.set_split(&[behind], &others(world, &[behind]), true);
    world.keep_copy(restored);
    for (number, name) in LOST.into_iter().enumerate() {
        world.start_client(99 + number, |client| client.make(name.to_owned(), old_leader));
        let is_done = world.run_until(5000, |world| world.history.counts().2 > number as u64);
        assert!(is_done || world.violation.is_some(), "{name} is not acknowledged");
    }
    run_for(world, 300);
    world.kill(restored, false);
    world.put_back(restored, Part::All);
    world.kill(old_leader, false);
    if let Some(learner) = learner {
        world.set_split(&[learner], &others(world, &[learner]), true);
    }
    world.start(restored);
    world.set_split(&[behind], &[restored], false);
    Loss { old_leader, restored, behind, learner }
}

/// Nobody alive remembers the lost entry. The two followers elect a leader that lacks a change which lookups have shown.
fn nobody_remembers_what_went_back(world: &mut World) {
    let loss = lose_an_entry(world);
    ask_always(world, &[loss.restored, loss.behind]);
    run_for(world, 4000);
}

/// The leader remembers what the follower acknowledged. The follower has to join under a new id, and vote again.
fn folder_goes_back(world: &mut World) {
    let (old, restored) = (leader(world), followers(world)[0]);
    let id = |world: &World| world.hosts[restored].node().map(|node| node.node_id);
    let before = id(world);
    world.keep_copy(restored);
    make(world, old);
    assert!(world.run_until(5000, |world| acknowledged(world)), "the change is not acknowledged");
    run_for(world, 300);
    world.kill(restored, false);
    world.put_back(restored, Part::All);
    world.start(restored);
    ask_always(world, &[restored]);
    let is_new = |world: &mut World| world.is_complete() && id(world).is_some_and(|id| Some(id) != before);
    if !world.run_until(10_000, is_new) && world.violation.is_none() {
        world.violation = Some("the replica went on under its id although its folder went back".to_owned());
    }
}

/// A learner has applied the lost entry, which the new leader does not have. It has to find out, and to join anew.
fn learner_differs(world: &mut World) {
    let loss = lose_an_entry(world);
    let learner = loss.learner.expect("the group has a learner");
    world.run_until(10_000, |world| world.leader().is_some_and(|host| host != loss.old_leader));
    run_for(world, 1000);
    let all = others(world, &[]);
    all.iter().for_each(|host| world.set_split(&[*host], &others(world, &[*host]), false));
    ask_always(world, &[learner]);
    world.start(loss.old_leader);
    run_for(world, 3000);
    world.stop_clients();
    if !world.run_until(20_000, |world| world.is_quiet()) && world.violation.is_none() {
        world.violation = Some("replicas differ, and do not find out".to_owned());
    }
}
