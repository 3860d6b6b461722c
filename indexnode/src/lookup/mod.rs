//! Lookups over the index with a cache of resolved prefixes: TopDirPathCache and Invalidator (Mantle, SOSP '25, 5.1.1 and
//! 5.1.2).
//!
//! It lies beside the pure core, not in it: the cache is this replica's own, no part of the replicated state, and shared
//! by threads; the core says what it needs to know of a change ([`Effects::modified`]). A prefix of a path, cut *levels* (k)
//! above its end, leads to a directory and to the distinct permissions on the way, so that one entry serves every caller.
//! Filled by lookups, never promoted or demoted.
//!
//! Where the paper names a directory under modification by its path, this names it by its id, and an entry knows the ids
//! on its way: ids are permanent, paths change with every ancestor's. The rest is the paper's:
//!
//! 1. Whoever changes the index holds its write guard, and calls [`PathCache::invalidate`] before giving it back, so before
//!    the applied index is published (P30): the directories enter *RemovalList*.
//! 2. A lookup holds the index's read guard from beginning to end, so nothing changes while it walks: the modification
//!    counter is the same at its end (P25 is kept without a second try). It reads RemovalList first. An entry with
//!    such a directory on its way is passed over.
//! 3. What a lookup found is cached after it gave the guard back. The *timestamp rule* keeps out what was modified since:
//!    the counter must be what it was at the lookup, and no directory on the way in RemovalList.
//! 4. In the background the subtree of each directory in RemovalList is removed from the cache, found by *PrefixTree*, in
//!    short steps; only then does the directory leave RemovalList (P30).
//!
//! A directory that no entry passes needs no RemovalList: only the counter moves. (So rmdir of a leaf is free.) Whether
//! a cached prefix crosses a rename's lock is asked of the locks each time (P26).
//!
//! Order of locks: the index's guard, then PrefixTree's, then shards' (readers take several, in their order), then RemovalList's.
//!
//! [`Effects::modified`]: crate::index::Effects::modified

mod cached_prefix;
mod invalidator;
mod prefix_table;
mod prefix_tree;
mod settings;
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

/// What lookups have met since the process started.
#[derive(Debug, Default)]
pub struct CacheCounters {
    /// Lookups answered from a cached prefix.
    pub hits: AtomicU64,
    /// Lookups of paths deep enough to be cached that found no entry.
    pub misses: AtomicU64,
    /// Lookups that passed an entry over: a directory on its way was being modified, or the caller may not search one.
    pub bypasses: AtomicU64,
    /// PrefixTable removed because a directory on their way was modified.
    pub purged: AtomicU64,
    /// PrefixTable that were not made because the cache is full.
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

/// What lookups found that may be cached, once the read guard is given back.
#[derive(Default)]
pub struct NewPrefixes {
    timestamp: u64,
    entries: Vec<CachedPrefix>,
}

/// What an entry is to a lookup.
enum Cached<'a> {
    /// The walk goes on below it.
    Below(Descent<'a>),
    /// No help: ask the table, and leave the cache as it is.
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

    /// Begins lookups. `index` is borrowed from the read guard: nothing changes until they end.
    pub fn begin<'a>(&'a self, index: &'a Index) -> Lookups<'a> {
        let found = NewPrefixes { timestamp: self.invalidator.timestamp(), entries: Vec::new() };
        let removals = self.invalidator.removals();
        Lookups { cache: self, index, removals, found, hits: 0, bypasses: 0 }
    }

    /// Caches what lookups found, after the read guard was given back.
    pub fn fill(&self, found: NewPrefixes) {
        for entry in found.entries {
            let bytes_max = self.settings.cache_bytes_max;
            let insert = |entry| self.entries.insert(entry);
            if self.invalidator.admit(entry, found.timestamp, bytes_max, insert) == Admission::Full {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Applies an entry of the log to the index in `state`, so many operations under a guard, and lets `publish` say that it is
    /// applied. What a part modified is in RemovalList before its guard is given back, so before anything is published
    /// (P30). Between two parts the thread serves whoever else wants it: where a replica has one, a lookup would
    /// wait for a whole entry otherwise. The caller keeps other entries out meanwhile.
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
            // Lookups of other threads get in after each part. The guard is not forced on them: that made apply four times
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
        // Of a test that swaps the order; else nothing is left.
        self.invalidate(&modified);
        published
    }

    /// Directories left their place or changed their permission. Called under the index's write guard, by whoever changed
    /// it. [`DirectoryId::SUPER_ROOT`] stands for all of them.
    pub fn invalidate(&self, directories: &[DirectoryId]) {
        if failpoints::is_hit(Failpoint::ForgetModified) {
            return;
        }
        if self.settings.cache_levels > 0 && self.invalidator.invalidate(directories) {
            self.purge_wanted.notify_one();
        }
    }

    /// Removes the entries whose way is modified, for ever.
    pub async fn purge_forever(&self) {
        loop {
            self.purge_wanted.notified().await;
            self.purge();
            // A subtree of many entries was many steps; others have work too.
            tokio::task::yield_now().await;
        }
    }

    /// Removes the entries through directories in RemovalList, which then leave it.
    pub fn purge(&self) {
        let removed = self.invalidator.purge(|hash, id| self.entries.remove(hash, id));
        self.counters.purged.fetch_add(removed, Ordering::Relaxed);
    }

    /// Counters.
    pub fn counters(&self) -> &CacheCounters {
        &self.counters
    }

    /// Cached prefixes, and the bytes they take, PrefixTree included.
    pub fn size(&self) -> (usize, usize) {
        self.invalidator.size()
    }
}

impl Lookups<'_> {
    /// Looks one path up.
    pub fn resolve(&mut self, query: &PathQuery<'_>) -> Resolution {
        let mut answer = None;
        self.resolve_all(std::slice::from_ref(query), |resolution| answer = Some(resolution));
        answer.expect("each query is answered")
    }

    /// Looks paths up, and tells `answer` in their order. Those that begin with a cached prefix are walked together.
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

    /// Ends the lookups; the read guard may go, and then what was found into [`PathCache::fill`].
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

    /// The key of a path's prefix; `None` when the path is not deep enough, or odd, or nothing is cached.
    fn key<'q>(&self, query: &PathQuery<'q>) -> Option<Key<'q>> {
        self.cache.entries.key(query.namespace, query.path.cut(self.cache.settings.cache_levels)?)
    }

    /// What the cache has for each query; `None`: no entry, or no key.
    fn cached<'q>(&self, queries: &[PathQuery<'q>], keys: &[Option<Key<'q>>]) -> Vec<Option<Cached<'q>>> {
        self.cache.entries.find_all(keys, |at, key, entry| {
            let caller = queries[at].caller;
            // A caller who may not search one of them is told where, and nothing of what lies below: the table knows.
            let is_open = entry.permissions().all(|permission| permission.allows(caller, Access::Search));
            if !is_open || self.removals.contain_any(entry.ids()) {
                return Cached::Bypass;
            }
            let prefix =
                Prefix { path: key.prefix, ns: entry.ns(), id: entry.id(), depth: entry.depth(), ids: entry.ids() };
            Cached::Below(self.index.descent(prefix, key.below, caller))
        })
    }

    /// Walks all of a path whose prefix was just looked for.
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
        if ids.len() == depth + 1 && !self.removals.contain_any(ids.iter().copied()) {
            self.found.entries.push(CachedPrefix::new(&key, &ids, &permissions));
        }
        resolution
    }
}
