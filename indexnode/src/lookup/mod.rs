//! Lookups over the index with a cache of resolved prefixes: TopDirPathCache and Invalidator (Mantle, SOSP '25, sections 5.1.1
//! and 5.1.2).
//!
//! The cache is outside the pure core: each replica has its own, it is not replicated, and threads share it. The core reports
//! what a change invalidates ([`Effects::modified`]). An entry maps a prefix, which ends *levels* (k) above the end of a path,
//! to a directory and to the distinct permissions on the prefix, so one entry serves every caller. Lookups fill the cache;
//! entries are never promoted or demoted.
//!
//! The paper names a modified directory by its path. This code names it by its id, and an entry holds the ids on its prefix:
//! ids are permanent, while a path changes with every ancestor. The rest follows the paper:
//!
//! 1. A writer of the index puts the modified directories into *RemovalList* ([`PathCache::invalidate`]) before it releases the
//!    write guard and publishes the applied index (P30).
//! 2. A lookup holds the index's read guard from beginning to end (P25, without a second try). It reads RemovalList first, and
//!    bypasses an entry with such a directory.
//! 3. A lookup caches its result after it released the guard. The *timestamp rule* rejects the result if something was modified
//!    since: the counter must be the same, and no directory of the prefix may be in RemovalList.
//! 4. In the background, short steps remove the subtree of each directory in RemovalList from the cache; *PrefixTree* finds the
//!    entries. Only then the directory leaves RemovalList (P30).
//!
//! A directory that is on no cached prefix does not enter RemovalList; only the counter moves. (So rmdir of a leaf is cheap.)
//!
//! A directory counts as modified already when a prepared rename locks it, and a lookup that crosses a lock caches nothing. So
//! no prefix in the cache crosses a lock (P26), and a hit costs the same however many renames are under way. A rename purges
//! its subtree once: when it commits, nothing of it is cached any more.
//!
//! Lock order: the index's guard, PrefixTree, the shards (readers take several in ascending order), RemovalList.
//!
//! [`Effects::modified`]: crate::index::Effects::modified

mod cached_prefix;
mod invalidator;
mod prefix_table;
mod prefix_tree;
mod settings;
mod signature;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

use mantle_types::{Caller, DirectoryId, permission::Access};
use parking_lot::RwLock;
use tokio::sync::Notify;

use crate::{
    failpoints::{self, Failpoint},
    index::{Descent, Effects, Index, LogEntry, Path, Prefix, Resolution, command::Applied},
};
use cached_prefix::{CachedPrefix, Key, Permissions};
use invalidator::{Admission, Invalidator, RemovalSnapshot, Rules};
use prefix_table::PrefixTable;
pub use settings::{Invalidation, LookupSettings};

/// A path to look up.
#[derive(Clone, Copy, Debug)]
pub struct PathQuery<'a> {
    /// The namespace's name.
    pub namespace: &'a str,
    /// A directory's path.
    pub path: Path<'a>,
    /// Who asks.
    pub caller: &'a Caller,
}

/// The cache of one replica.
pub struct PathCache {
    settings: LookupSettings,
    entries: PrefixTable,
    invalidator: Invalidator,
    counters: CacheCounters,
    purge_wanted: Notify,
}

/// Counts of lookups since the process started.
#[derive(Debug, Default)]
pub struct CacheCounters {
    /// Lookups answered from a cached prefix.
    pub hits: AtomicU64,
    /// Lookups of paths deep enough for the cache that found no entry.
    pub misses: AtomicU64,
    /// Lookups that bypassed an entry: a directory of the prefix was being modified, or the caller may not search one.
    pub bypasses: AtomicU64,
    /// Entries removed because a directory of their prefix was modified.
    pub purged: AtomicU64,
    /// Entries that were not added because the cache is full.
    pub refused: AtomicU64,
}

/// Lookups under one read guard of the index.
pub struct Lookups<'a> {
    cache: &'a PathCache,
    index: &'a Index,
    removals: RemovalSnapshot,
    found: NewPrefixes,
    hits: u64,
    bypasses: u64,
}

/// Prefixes that lookups resolved, to be cached after the read guard is released.
#[derive(Default)]
pub struct NewPrefixes {
    timestamp: u64,
    entries: Vec<CachedPrefix>,
}

/// How a lookup uses the entry of its prefix.
enum Cached<'a> {
    /// The walk continues below the prefix.
    Below(Descent<'a>),
    /// The lookup walks the table from the root, and does not change the cache.
    Bypass,
}

impl PathCache {
    /// An empty cache.
    pub fn new(settings: LookupSettings) -> Self {
        Self::with_rules(settings, Rules::ALL)
    }

    fn with_rules(settings: LookupSettings, rules: Rules) -> Self {
        Self {
            entries: PrefixTable::new(),
            invalidator: Invalidator::new(&settings, rules),
            settings,
            counters: CacheCounters::default(),
            purge_wanted: Notify::new(),
        }
    }

    /// Begins lookups. `index` is borrowed from the read guard, so it does not change until they end.
    pub fn begin<'a>(&'a self, index: &'a Index) -> Lookups<'a> {
        let found = NewPrefixes { timestamp: self.invalidator.timestamp(), entries: Vec::new() };
        let removals = self.invalidator.removals();
        Lookups { cache: self, index, removals, found, hits: 0, bypasses: 0 }
    }

    /// Caches the prefixes that lookups resolved. Call it after the read guard is released.
    pub fn fill(&self, found: NewPrefixes) {
        for entry in found.entries {
            let bytes_max = self.settings.cache_bytes_max;
            let insert = |entry| self.entries.insert(entry);
            if self.invalidator.admit(entry, found.timestamp, bytes_max, insert) == Admission::Full {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Applies an entry of the log to the index in `state`, at most `operations_per_part` operations under one guard, then
    /// calls `publish`. Directories modified by a part are in RemovalList before its guard is released, so before anything is
    /// published (P30). Between two parts the task yields: with a single thread, a lookup would otherwise wait for the whole
    /// entry. The caller must not apply another entry meanwhile.
    pub async fn apply<T, R>(
        &self,
        state: &RwLock<T>,
        index: impl Fn(&mut T) -> &mut Index,
        mut entry: LogEntry,
        operations_per_part: usize,
        publish: impl FnOnce(Applied, Effects) -> R,
    ) -> R {
        let (mut effects, mut modified) = (Effects::default(), Vec::new());
        let applied = loop {
            // Lookups of other threads can take the guard after each part. An unfair release: a fair one made apply four times
            // slower (see tests/waits.rs).
            let applied = {
                let mut guard = state.write();
                let applied = index(&mut guard).apply_part(&mut entry, operations_per_part, &mut effects);
                if self.invalidator.lists_first() {
                    self.invalidate(&effects.modified);
                    effects.modified.clear();
                } else {
                    modified.append(&mut effects.modified);
                }
                applied
            };
            if let Some(applied) = applied {
                break applied;
            }
            tokio::task::yield_now().await;
        };
        let published = publish(applied, effects);
        // Empty, except in a test that swaps the order.
        self.invalidate(&modified);
        published
    }

    /// Invalidates the prefixes through directories that left their place or changed their permission. Call it under the
    /// index's write guard. [`DirectoryId::SUPER_ROOT`] stands for all directories.
    pub fn invalidate(&self, directories: &[DirectoryId]) {
        let is_on = self.settings.cache_levels > 0 && !failpoints::is_hit(Failpoint::ForgetModified);
        if is_on && self.invalidator.invalidate(directories) {
            self.purge_wanted.notify_one();
        }
    }

    /// Purges whenever directories were invalidated. Never returns.
    pub async fn purge_forever(&self) {
        loop {
            self.purge_wanted.notified().await;
            self.purge();
            // A large subtree takes many steps; other tasks need the thread.
            tokio::task::yield_now().await;
        }
    }

    /// Removes the entries through directories in RemovalList, and then these directories from RemovalList.
    pub fn purge(&self) {
        let removed = self.invalidator.purge(|hash, id| self.entries.remove(hash, id));
        self.counters.purged.fetch_add(removed, Ordering::Relaxed);
    }

    /// The counters of this cache.
    pub fn counters(&self) -> &CacheCounters {
        &self.counters
    }

    /// Number of cached prefixes, and their memory in bytes, PrefixTree included.
    pub fn size(&self) -> (usize, usize) {
        self.invalidator.size()
    }
}

impl Lookups<'_> {
    /// Looks up one path.
    pub fn resolve(&mut self, query: &PathQuery<'_>) -> Resolution {
        let mut answer = None;
        self.resolve_all(std::slice::from_ref(query), |resolution| answer = Some(resolution));
        answer.expect("each query is answered")
    }

    /// Looks up paths and calls `answer` in their order. Paths with a cached prefix are walked together.
    pub fn resolve_all(&mut self, queries: &[PathQuery<'_>], mut answer: impl FnMut(Resolution)) {
        let keys: Vec<_> = queries.iter().map(|query| self.key(query)).collect();
        let cached = self.cached(queries, &keys);
        let mut walks = Vec::with_capacity(queries.len());
        let mut others = Vec::new();
        for (at, ((query, key), cached)) in queries.iter().zip(keys).zip(cached).enumerate() {
            match (key, cached) {
                (_, Some(Cached::Below(walk))) => walks.push(walk),
                (_, Some(Cached::Bypass)) => {
                    self.bypasses += 1;
                    others.push((at, self.walk(query)));
                }
                (Some(key), None) => others.push((at, self.walk_and_keep(query, key))),
                (None, None) => others.push((at, self.walk(query))),
            }
        }
        self.hits += walks.len() as u64;
        self.index.descend_all(&mut walks);
        let (mut walks, mut others) = (walks.into_iter(), others.into_iter().peekable());
        for (at, query) in queries.iter().enumerate() {
            answer(match others.next_if(|(other, _)| *other == at) {
                Some((_, resolution)) => resolution,
                None => walks.next().and_then(Descent::resolution).unwrap_or_else(|| self.walk(query)),
            });
        }
    }

    /// Ends the lookups. Release the read guard, then pass the result to [`PathCache::fill`].
    pub fn end(self) -> NewPrefixes {
        let counters = &self.cache.counters;
        counters.hits.fetch_add(self.hits, Ordering::Relaxed);
        counters.misses.fetch_add(self.found.entries.len() as u64, Ordering::Relaxed);
        counters.bypasses.fetch_add(self.bypasses, Ordering::Relaxed);
        self.found
    }

    fn walk(&self, query: &PathQuery<'_>) -> Resolution {
        self.index.resolve_visiting(query.namespace, query.path, query.caller, |_, _| {})
    }

    /// The key of a path's prefix. `None` if the path is not deep enough or too long, or the cache is off.
    fn key<'q>(&self, query: &PathQuery<'q>) -> Option<Key<'q>> {
        self.cache.entries.key(query.namespace, query.path.cut(self.cache.settings.cache_levels)?)
    }

    /// The use of the cache for each query. `None`: no entry, or no key.
    fn cached<'q>(&self, queries: &[PathQuery<'q>], keys: &[Option<Key<'q>>]) -> Vec<Option<Cached<'q>>> {
        self.cache.entries.find_all(keys, |at, key, entry| {
            let caller = queries[at].caller;
            // A denied caller must learn which directory denied, and nothing below it. The walk from the root tells.
            let is_open = entry.permissions().all(|permission| permission.allows(caller, Access::Search));
            if !is_open || self.removals.contain_any(entry.signature(), entry.ids()) {
                return Cached::Bypass;
            }
            let prefix = Prefix { ns: entry.ns(), id: entry.id(), depth: entry.depth() };
            Cached::Below(self.index.descent(prefix, key.below, caller))
        })
    }

    /// Walks a whole path whose prefix is not cached, and keeps the prefix for the cache.
    fn walk_and_keep(&mut self, query: &PathQuery<'_>, key: Key<'_>) -> Resolution {
        let depth = key.prefix.components().count();
        let mut ids = Vec::with_capacity(depth + 1);
        let mut permissions = Permissions::new();
        let resolution = self.index.resolve_visiting(query.namespace, query.path, query.caller, |id, permission| {
            if ids.len() <= depth {
                ids.push(id);
                if !permissions.contains(&permission) {
                    permissions.push(permission);
                }
            }
        });
        if ids.len() == depth + 1 && !resolution.crossed_lock {
            let entry = CachedPrefix::new(&key, &ids, &permissions);
            if !self.removals.contain_any(entry.signature(), entry.ids()) {
                self.found.entries.push(entry);
            }
        }
        resolution
    }
}
