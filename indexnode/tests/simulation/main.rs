//! The seeded simulation: a group of replicas, as they are in production, on hosts whose network, disks, clocks and
//! PostgreSQL are simulated. `make simulate SEED=n` replays a seed with its trace.

mod client;
mod disk;
mod faults;
mod history;
mod host;
mod invariants;
mod network;
mod postgres;
mod run;
mod shim;
mod trace;
mod tree;
mod upstream;
mod world;

use crate::run::{in_a_process, random_history, simulate};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// One seed; run by the others in a process of its own.
#[test]
#[ignore = "one seed, for the tests that start processes, and for `make simulate`"]
fn one_seed() {
    let seed = number("MANTLE_SIMULATION_SEED").unwrap_or(1);
    let prints = number("MANTLE_SIMULATION_TRACE") == Some(1);
    let report = simulate(seed, move |folder| random_history(seed, folder, prints));
    println!("{report}");
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..3u64 {
        let run = || in_a_process("one_seed", &[("MANTLE_SIMULATION_SEED", seed.to_string())]);
        let (first, second) = (run(), run());
        assert!(first.contains("hash="), "{first}");
        assert_eq!(first, second);
    }
}
