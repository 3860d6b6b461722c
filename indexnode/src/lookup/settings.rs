//! Settings of the cache of prefixes, a part of the configuration file.

use serde::Deserialize;

/// Lookups: the cache of resolved prefixes.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LookupSettings {
    /// A path's prefix is cached without so many components at its end (the paper's k); 0: nothing is cached.
    pub cache_levels: usize,
    /// Most bytes that cached prefixes take; what finds no room is looked up in the table.
    pub cache_bytes_max: usize,
    /// What is removed when a directory is modified.
    pub invalidation: Invalidation,
}

/// What a modified directory removes from the cache of prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Invalidation {
    /// The prefixes that pass it.
    Range,
    /// All: what it would be without PrefixTree. For measurements.
    All,
}

impl Default for LookupSettings {
    fn default() -> Self {
        Self { cache_levels: 3, cache_bytes_max: 256 << 20, invalidation: Invalidation::Range }
    }
}
