//! How names and paths are hashed: keyed, since users choose them, and quickly, since every component of every lookup is.

use std::sync::LazyLock;

use foldhash::SharedSeed;

/// What hashes of one table are keyed with.
pub type Seed = foldhash::quality::SeedableRandomState;

/// A new one, of the system's randomness. (foldhash's own is made of addresses and of the clock.)
pub fn fresh_seed() -> Seed {
    static SHARED: LazyLock<SharedSeed> = LazyLock::new(|| SharedSeed::from_u64(rand::random()));
    Seed::with_seed(rand::random(), &SHARED)
}
