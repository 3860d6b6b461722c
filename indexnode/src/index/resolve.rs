//! Lookup: a path to its directory, in one walk over the table.
//!
//! Every ancestor counts: the caller needs search permission on each directory passed, the namespace's root included.
//! The final directory's own permission is returned, not judged: that depends on what the caller wants to do there.

use mantle_types::{Caller, DirectoryId, ErrorCode, NamespaceId, PartitionId, Permission, permission::Access};

use super::{
    locks::Locks,
    path::Path,
    record::{Directory, directory_of},
    table::IndexTable,
};

/// Where a walk came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// `NotFound`, `AccessDenied`, `NamespaceNotFound`, or `IndexUnavailable` when nothing is served.
    pub outcome: Result<(), ErrorCode>,
    /// The namespace.
    pub ns: NamespaceId,
    /// The deepest directory that exists on the path; on `AccessDenied` the one that must not be searched.
    pub id: DirectoryId,
    /// Components between the root and `id`.
    pub depth: usize,
    /// Parent of `id`.
    pub parent_id: DirectoryId,
    /// Permission of `id`.
    pub permission: Permission,
    /// Record version of `id`.
    pub version: u64,
    /// A directory passed, or the missing place, belongs to a rename under way: PostgreSQL decides (P26).
    pub crossed_lock: bool,
}

impl Resolution {
    /// Nothing of the path exists.
    pub(super) fn unresolved(code: ErrorCode) -> Self {
        Self {
            outcome: Err(code),
            ns: NamespaceId(0),
            id: DirectoryId::SUPER_ROOT,
            depth: 0,
            parent_id: DirectoryId::SUPER_ROOT,
            permission: Permission { owner: 0, group: 0, mode: 0 },
            version: 0,
            crossed_lock: false,
        }
    }

    fn move_to(&mut self, directory: &Directory) {
        self.id = directory.id;
        self.parent_id = directory_of(directory.pid);
        self.permission = directory.permission;
        self.version = directory.version;
    }
}

/// Walks from a namespace's root along `components`, telling `passed` of every directory that it comes to.
pub(super) fn walk<'c>(
    table: &IndexTable,
    locks: &Locks,
    namespace: &str,
    components: impl IntoIterator<Item = &'c str>,
    caller: &Caller,
    mut visit: impl FnMut(&Directory),
) -> Resolution {
    let super_root = DirectoryId::SUPER_ROOT.sole_partition();
    let Some(here) = table.lookup(super_root, namespace) else {
        return Resolution::unresolved(ErrorCode::NamespaceNotFound);
    };
    let mut resolution = Resolution::unresolved(ErrorCode::NotFound);
    resolution.ns = NamespaceId(here.id.0);
    resolution.move_to(&here);
    visit(&here);
    for component in components {
        if !resolution.permission.allows(caller, Access::Search) {
            resolution.outcome = Err(ErrorCode::AccessDenied);
            return resolution;
        }
        let pid = resolution.id.sole_partition();
        let next = table.lookup(pid, component);
        resolution.crossed_lock |= locks.covers(pid, component, next.map(|directory| directory.id));
        let Some(next) = next else { return resolution };
        resolution.depth += 1;
        resolution.move_to(&next);
        visit(&next);
    }
    resolution.outcome = Ok(());
    resolution
}

/// The first components of a path, and the directory they are known to lead to. Namespace, directory and depth are what `ids`
/// begins with, ends with and counts, known without reading it: mostly nothing else of it is needed, and it lies elsewhere in memory.
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'a, Ids> {
    /// The components; at least one.
    pub path: Path<'a>,
    /// The namespace.
    pub ns: NamespaceId,
    /// The directory.
    pub id: DirectoryId,
    /// Components.
    pub depth: usize,
    /// The directories on the way, the namespace's root first: one more than components.
    pub ids: Ids,
}

/// A walk that begins below a known prefix, whose directories the caller may search.
#[derive(Debug)]
pub struct Descent<'a> {
    /// Where the walk stands.
    resolution: Resolution,
    /// The next component.
    name: &'a str,
    /// What is left of the path below it.
    below: Option<Path<'a>>,
    caller: &'a Caller,
    /// It stands where the prefix ends: what is known of that directory is its id.
    is_at_prefix: bool,
}

impl<'a> Descent<'a> {
    /// A walk along a path that is not the root's, below a prefix of at least one component.
    pub(super) fn new(
        locks: &Locks,
        prefix: Prefix<'_, impl Iterator<Item = DirectoryId> + Clone>,
        path: Path<'a>,
        caller: &'a Caller,
    ) -> Self {
        debug_assert!(path != Path("") && prefix.depth > 0);
        debug_assert!(prefix.ids.clone().count() == prefix.depth + 1 && prefix.ids.clone().last() == Some(prefix.id));
        let (name, below) = path.split_first();
        let mut resolution = Resolution::unresolved(ErrorCode::NotFound);
        resolution.ns = prefix.ns;
        resolution.id = prefix.id;
        resolution.depth = prefix.depth;
        resolution.crossed_lock = prefix_crosses_lock(locks, prefix);
        Self { resolution, name, below, caller, is_at_prefix: true }
    }

    fn place(&self) -> (PartitionId, &'a str) {
        (self.resolution.id.sole_partition(), self.name)
    }

    /// Takes what the next place holds. Is the walk over?
    fn step(&mut self, locks: &Locks, next: Option<Directory>) -> bool {
        let (pid, name) = self.place();
        self.resolution.crossed_lock |= locks.covers(pid, name, next.map(|directory| directory.id));
        let Some(next) = next else { return true };
        self.is_at_prefix = false;
        self.resolution.depth += 1;
        self.resolution.move_to(&next);
        let Some(path) = self.below else {
            self.resolution.outcome = Ok(());
            return true;
        };
        if !next.permission.allows(self.caller, Access::Search) {
            self.resolution.outcome = Err(ErrorCode::AccessDenied);
            return true;
        }
        (self.name, self.below) = path.split_first();
        false
    }

    /// The answer; `None` when the walk did not get below its prefix, so that too little is known.
    pub fn resolution(self) -> Option<Resolution> {
        (!self.is_at_prefix).then_some(self.resolution)
    }
}

/// Walks all, a level at a time, and each level in steps, one for all after the other: hash and begin to load the table's
/// lines; find and begin to load the cells; compare. So the probes of different walks do not wait for each other's memory. (Each
/// walk in turn a step further, every other one a step ahead, so that memory and processor are busy at once, was no faster.)
pub(super) fn descend_all(table: &IndexTable, locks: &Locks, walks: &mut [Descent<'_>]) {
    let mut active: Vec<u32> = (0..walks.len() as u32).collect();
    let mut hashes = Vec::with_capacity(walks.len());
    let mut candidates = Vec::with_capacity(walks.len());
    while !active.is_empty() {
        hashes.clear();
        hashes.extend(active.iter().map(|at| {
            let (pid, name) = walks[*at as usize].place();
            let hash = table.hash(pid, name);
            table.prefetch_place(hash);
            hash
        }));
        candidates.clear();
        candidates.extend(hashes.iter().map(|hash| {
            let candidate = table.candidate(*hash);
            table.prefetch_candidate(candidate);
            candidate
        }));
        let mut candidates = candidates.iter();
        active.retain(|at| {
            let walk = &mut walks[*at as usize];
            let (pid, name) = walk.place();
            let next = candidates.next().and_then(|candidate| table.lookup_candidate(*candidate, pid, name));
            !walk.step(locks, next)
        });
    }
}

/// Does the way over a prefix touch a lock? As a walk over it would find.
fn prefix_crosses_lock(locks: &Locks, prefix: Prefix<'_, impl Iterator<Item = DirectoryId> + Clone>) -> bool {
    !locks.is_empty()
        && prefix
            .path
            .components()
            .zip(prefix.ids.clone().zip(prefix.ids.skip(1)))
            .any(|(name, (above, below))| locks.covers(above.sole_partition(), name, Some(below)))
}
