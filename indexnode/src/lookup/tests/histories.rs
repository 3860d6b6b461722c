//! Random histories of concurrent lookups, mkdirs, renames (with and without a lock), chmods and rmdirs. Every answer must be
//! one that a linearizable index may give. With any one of the cache's rules switched off, the tests find a wrong answer: so
//! the check can fail.
//!
//! Two modes. *Steps*: one thread, and a seed decides the order of all steps, so a failure repeats with its seed. *Threads*:
//! real concurrency. `MANTLE_TEST_SEED` runs one seed.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::world::{World, Writer, Wrong};
use crate::lookup::invalidator::Rules;

const SEEDS: u64 = 60;
/// With a rule switched off, this many seeds find a wrong answer.
const SEEDS_BROKEN: u64 = 60;
const STEPS: usize = 4_000;
/// Lookups that are answered and whose results are not cached yet.
const UNFINISHED_MAX: usize = 4;
const READERS: u64 = 3;
const CHANGES: usize = 1_500;

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let only = std::env::var("MANTLE_TEST_SEED").ok().map(|seed| seed.parse().expect("MANTLE_TEST_SEED is a number"));
    let range = only.map_or(0..count, |seed: u64| seed..seed + 1);
    range.inspect(|seed| println!("seed {seed}"))
}

/// Steps of a writer, readers and the purge, in an order that the seed decides.
fn in_steps(seed: u64, rules: Rules) -> Result<(), Box<Wrong>> {
    let world = World::new(rules);
    let mut writer = Writer::new(seed);
    let mut random = StdRng::seed_from_u64(!seed);
    let mut unfinished = Vec::new();
    for _ in 0..STEPS {
        match random.random_range(0..10) {
            0 => writer.change(&world),
            1 => world.cache.purge(),
            2..=5 if unfinished.len() < UNFINISHED_MAX => {
                let answered = world.look_up(&mut random);
                answered.outcome?;
                unfinished.push(answered.found);
            }
            _ if unfinished.is_empty() => {}
            _ => {
                let at = random.random_range(0..unfinished.len());
                world.cache.fill(unfinished.swap_remove(at));
            }
        }
    }
    if rules == Rules::ALL {
        world.check_size();
    }
    world.wrong.into_inner().map_or(Ok(()), Err)
}

/// The same with threads.
fn in_threads(seed: u64, rules: Rules) -> Result<(), Box<Wrong>> {
    let world = World::new(rules);
    let (is_over, wrong) = (AtomicBool::new(false), Mutex::new(None));
    let is_running = || !is_over.load(Ordering::Relaxed);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = StdRng::seed_from_u64(seed + 1_000);
            while is_running() {
                world.cache.purge();
                (0..random.random_range(0..4)).for_each(|_| thread::yield_now());
            }
        });
        for reader in 0..READERS {
            let (world, wrong, is_over) = (&world, &wrong, &is_over);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed * READERS + reader);
                while !is_over.load(Ordering::Relaxed) {
                    let answered = world.look_up(&mut random);
                    (0..random.random_range(0..4)).for_each(|_| thread::yield_now());
                    world.cache.fill(answered.found);
                    if let Err(e) = answered.outcome {
                        *wrong.lock() = Some(e);
                        is_over.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut writer = Writer::new(seed);
        for _ in 0..CHANGES {
            writer.change(&world);
            thread::yield_now();
            if !is_running() {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    if rules == Rules::ALL {
        world.check_size();
    }
    wrong.into_inner().or(world.wrong.into_inner()).map_or(Ok(()), Err)
}

fn first_wrong(run: fn(u64, Rules) -> Result<(), Box<Wrong>>, rules: Rules) -> Option<u64> {
    seeds(SEEDS_BROKEN).find(|seed| run(*seed, rules).is_err())
}

#[test]
fn every_answer_in_steps_is_linearizable() {
    for seed in seeds(SEEDS) {
        in_steps(seed, Rules::ALL).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong:#?}"));
    }
}

#[test]
fn every_answer_of_threads_is_linearizable() {
    for seed in seeds(SEEDS / 10) {
        in_threads(seed, Rules::ALL).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong:#?}"));
    }
}

#[test]
fn without_the_timestamp_rule_a_wrong_answer_is_found() {
    let rules = Rules { timestamp: false, ..Rules::ALL };
    assert!(first_wrong(in_steps, rules).is_some());
    assert!(first_wrong(in_threads, rules).is_some());
}

#[test]
fn without_removal_list_a_wrong_answer_is_found() {
    let rules = Rules { removal_list: false, ..Rules::ALL };
    assert!(first_wrong(in_steps, rules).is_some());
    assert!(first_wrong(in_threads, rules).is_some());
}

/// P30: modified directories enter RemovalList before the applied index is published.
/// [`PathCache::apply`](crate::lookup::PathCache::apply), which the state machine uses too, has that order.
#[test]
fn with_the_order_of_listing_and_publishing_swapped_a_wrong_answer_is_found() {
    let rules = Rules { listed_first: false, ..Rules::ALL };
    assert!(first_wrong(in_steps, rules).is_some());
    assert!(first_wrong(in_threads, rules).is_some());
}

#[test]
fn without_the_purge_a_wrong_answer_is_found() {
    let rules = Rules { purge: false, ..Rules::ALL };
    assert!(first_wrong(in_steps, rules).is_some());
    assert!(first_wrong(in_threads, rules).is_some());
}
