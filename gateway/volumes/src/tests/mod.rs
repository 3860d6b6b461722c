//! Tests of the store as a whole.

mod churn;
mod files;
mod flush;
mod get;
pub(crate) mod mutation;
mod oracle;
mod profile;
mod simulation;

use mutation::Mutation;

/// Histories of one run of the tests; MANTLE_VOLUME_SEEDS says another number.
const SEEDS: u64 = 1000;

fn first_violation(seeds: std::ops::Range<u64>, mutation: Option<Mutation>) -> Option<(u64, String)> {
    let mut violations = seeds.filter_map(|seed| {
        let result = mutation::with(mutation, || simulation::run(seed));
        result.err().map(|violation| (seed, violation))
    });
    violations.next()
}

#[test]
fn histories_are_sound() {
    let seeds = std::env::var("MANTLE_VOLUME_SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    let half = seeds / 2;
    let other = std::thread::spawn(move || first_violation(0..half, None));
    assert_eq!(first_violation(half..seeds, None), None);
    assert_eq!(other.join().unwrap(), None);
}

#[test]
fn the_simulation_notices_what_is_left_out() {
    for mutation in [
        Mutation::SeedWithoutGeneration,
        Mutation::IgnoreGeneration,
        Mutation::IgnoreSums,
        Mutation::SkipFlush,
        Mutation::SkipSizeFlush,
        Mutation::RetryFlush,
        Mutation::IgnorePins,
        Mutation::ForgetPins,
        Mutation::FreeWhileWriting,
        Mutation::FreeBeforeDurable,
        Mutation::DiscardInDoubt,
        Mutation::ForgetRows,
    ] {
        let noticed = first_violation(0..SEEDS, Some(mutation));
        println!("{mutation:?}: {noticed:?}");
        assert!(noticed.is_some(), "{mutation:?} was not noticed");
    }
}
