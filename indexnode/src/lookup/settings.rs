//! Settings of the cache of prefixes, a part of the configuration file.

use serde::Deserialize;

/// Lookups: the cache of resolved prefixes.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct LookupSettings {
    /// The cached prefix ends this many components above the end of a path (the paper's k). 0: nothing is cached.
    pub cache_levels: usize,
    /// Most bytes that the cached prefixes take. A full cache adds no entries; lookups walk the table instead.
    pub cache_bytes_max: usize,
    /// Which entries a change of a directory removes: those of paths through it (`range`), or all, for measurements.
    pub invalidation: Invalidation,
}

/// The entries that a modified directory removes from the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize, schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Invalidation {
    /// The entries through this directory.
    Range,
    /// All entries, as without PrefixTree. For measurements.
    All,
}

impl Default for LookupSettings {
    fn default() -> Self {
        Self { cache_levels: 3, cache_bytes_max: 256 << 20, invalidation: Invalidation::Range }
    }
}
