//! The tests: every seed is sound, the same seed gives the same history, and a left-out protection is noticed.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use mantle_indexnode::failpoints::{self, Failpoint};
use parking_lot::Mutex;

use crate::{
    run::{in_a_process, random_history, simulate},
    scenarios::{self, SCENARIOS},
};

/// Number of histories in `make test`; `make soak` runs more.
const SEEDS: u64 = 500;
/// A missing protection is found within this many seeds: one history in fifty finds the rarest (`ApplyAnyVersion`).
const SEEDS_TO_FIND: u64 = 500;
const SCENARIO_SEEDS: u64 = 4;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// One history. The other tests and `make simulate` start it in a process of its own.
#[test]
#[ignore = "one history, in a process of its own"]
fn one_history() {
    let seed = number("MANTLE_SIMULATION_SEED").unwrap_or(1);
    let prints = number("MANTLE_SIMULATION_TRACE") == Some(1);
    if prints {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).without_time().with_writer(std::io::stdout).init();
    }
    if let Ok(name) = std::env::var("MANTLE_SIMULATION_FAILPOINT") {
        failpoints::switch_on(Failpoint::named(&name).expect("a failpoint's name"));
    }
    let scenario = std::env::var("MANTLE_SIMULATION_SCENARIO").ok();
    let report = simulate(seed, move |directory| match scenario {
        Some(name) => scenarios::play(&name, seed, directory, prints),
        None => random_history(seed, directory, prints),
    });
    println!("{report}");
}

fn history(seed: u64, scenario: Option<&str>, failpoint: Option<Failpoint>) -> String {
    let mut variables = vec![("MANTLE_SIMULATION_SEED", seed.to_string())];
    variables.extend(scenario.map(|name| ("MANTLE_SIMULATION_SCENARIO", name.to_owned())));
    variables.extend(failpoint.map(|failpoint| ("MANTLE_SIMULATION_FAILPOINT", format!("{failpoint:?}"))));
    in_a_process("seeded::one_history", &variables)
}

fn is_sound(result: &str) -> bool {
    result.ends_with("violation=none")
}

/// Runs the seeds on all processors. Returns the unsound ones with their reports; stops at the first if `is_one_enough`.
fn unsound(seeds: std::ops::Range<u64>, failpoint: Option<Failpoint>, is_one_enough: bool) -> Vec<(u64, String)> {
    let next = AtomicU64::new(seeds.start);
    let found = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || (is_one_enough && !found.lock().is_empty()) {
                        return;
                    }
                    let result = history(seed, None, failpoint);
                    if !is_sound(&result) {
                        found.lock().push((seed, result));
                    }
                }
            });
        }
    });
    found.into_inner()
}

#[test]
fn every_seed_is_sound() {
    let count = number("MANTLE_SIMULATION_SEEDS").unwrap_or(SEEDS);
    let unsound = unsound(0..count, None, false);
    for (seed, result) in &unsound {
        println!("`make simulate SEED={seed}`: {result}");
    }
    assert!(unsound.is_empty(), "{} of {count} seeds are not sound", unsound.len());
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..5 {
        let (first, second) = (history(seed, None, None), history(seed, None, None));
        assert!(first.contains("hash="), "{first}");
        assert_eq!(first, second);
    }
}

/// Protections that random histories prove, most within a dozen seeds.
const FOUND_AT_RANDOM: [Failpoint; 11] = [
    Failpoint::LookupBeforeApply,
    Failpoint::AcknowledgeBeforeFlush,
    Failpoint::ApplyTwice,
    Failpoint::UnlockWithoutAbort,
    Failpoint::ApplyBeyondStandby,
    Failpoint::ForgetModified,
    Failpoint::ApplyAnyVersion,
    Failpoint::PrepareBelowItself,
    Failpoint::PrepareThroughLocks,
    Failpoint::DecideByOwnRule,
    Failpoint::SettleWithoutSample,
];

#[test]
fn a_missing_protection_is_found() {
    for failpoint in FOUND_AT_RANDOM {
        let found = unsound(0..SEEDS_TO_FIND, Some(failpoint), true);
        println!("{failpoint:?}: {:?}", found.first());
        assert!(!found.is_empty(), "{failpoint:?} goes unnoticed");
    }
}

/// The protections that the scenarios prove, in their order.
const TRAPS: [Failpoint; 9] = [
    Failpoint::ReadBeforeFirstEntry,
    Failpoint::ReadIndexOfOldLeader,
    Failpoint::PublishBeforeInstall,
    Failpoint::VoteWithinLease,
    Failpoint::CopyBeyondStandby,
    Failpoint::FollowAnyTimeline,
    Failpoint::TrustEveryVoter,
    Failpoint::KeepLostLog,
    Failpoint::ServeDifferingState,
];

#[test]
fn known_traps_are_survived() {
    for (name, ..) in SCENARIOS {
        for seed in 0..SCENARIO_SEEDS {
            let result = history(seed, Some(name), None);
            assert!(is_sound(&result), "{name}, seed {seed}: {result}");
        }
    }
}

#[test]
fn known_traps_catch_without_the_protection() {
    for ((name, ..), failpoint) in SCENARIOS.into_iter().zip(TRAPS) {
        let mut results = (0..SCENARIO_SEEDS).map(|seed| history(seed, Some(name), Some(failpoint)));
        let found = results.find(|result| !is_sound(result));
        println!("{name} without its protection: {found:?}");
        let words = [
            "is older than",
            "no state between",
            "the standby does not have",
            "is not PostgreSQL's",
            "although its folder went back",
            "do not find out",
        ];
        let says = |result: &String| words.iter().any(|word| result.contains(word));
        assert!(found.as_ref().is_some_and(says), "{name} with {failpoint:?}: {found:?}");
    }
}
