//! The hash function of names and paths: keyed, because users choose them; fast, because every component of a lookup is hashed.

use std::sync::LazyLock;

use foldhash::SharedSeed;

/// The key of the hashes of one table.
pub type Seed = foldhash::quality::SeedableRandomState;

/// A new seed from the system's random numbers. (foldhash makes its own from addresses and the clock.)
pub fn fresh_seed() -> Seed {
    static SHARED: LazyLock<SharedSeed> = LazyLock::new(|| SharedSeed::from_u64(rand::random()));
    Seed::with_seed(rand::random(), &SHARED)
}
