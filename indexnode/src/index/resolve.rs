//! Resolves a path to its directory in one walk over the table.
//!
//! The caller needs search permission on every directory above the last one, the namespace's root included. The walk returns
//! the last directory's permission and does not check it: that depends on what the caller wants to do there.

use mantle_types::{Caller, DirectoryId, ErrorCode, NamespaceId, PartitionId, Permission, permission::Access};

use super::{
    locks::Locks,
    path::Path,
    record::{Directory, directory_of},
    table::IndexTable,
};

/// The result of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Resolution {
    /// `NotFound`, `AccessDenied`, `NamespaceNotFound`, or `IndexUnavailable` if the index serves nothing.
    pub outcome: Result<(), ErrorCode>,
    pub ns: NamespaceId,
    /// The deepest directory that exists on the path; on `AccessDenied` the one that the caller may not search.
    /// `parent_id`, `permission` and `version` are those of this directory.
    pub id: DirectoryId,
    /// Components between the root and `id`.
    pub depth: usize,
    pub parent_id: DirectoryId,
    pub permission: Permission,
    pub version: u64,
    /// A rename holds a lock on a directory of the path or on the missing place: PostgreSQL decides (P26).
    pub crossed_lock: bool,
}

impl Resolution {
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

/// Walks from a namespace's root along `components`, and calls `visit` for every directory that it reaches.
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

/// The directory to which the first components of a path are known to lead, through no directory or place that a rename has
/// locked.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Prefix {
    pub ns: NamespaceId,
    pub id: DirectoryId,
    /// Components of the prefix: at least one.
    pub depth: usize,
}

/// A walk that begins below a known prefix, whose directories the caller may search.
#[derive(Debug)]
pub struct Descent<'a> {
    /// The result so far.
    resolution: Resolution,
    /// The next component.
    name: &'a str,
    /// The path below it.
    below: Option<Path<'a>>,
    caller: &'a Caller,
    /// The walk is still at the end of the prefix. Of that directory it knows only the id.
    is_at_prefix: bool,
}

impl<'a> Descent<'a> {
    /// A walk along a path that is not empty, below a prefix of at least one component.
    pub(super) fn new(prefix: Prefix, path: Path<'a>, caller: &'a Caller) -> Self {
        debug_assert!(path != Path("") && prefix.depth > 0);
        let (name, below) = path.split_first();
        let mut resolution = Resolution::unresolved(ErrorCode::NotFound);
        resolution.ns = prefix.ns;
        resolution.id = prefix.id;
        resolution.depth = prefix.depth;
        Self { resolution, name, below, caller, is_at_prefix: true }
    }

    fn place(&self) -> (PartitionId, &'a str) {
        (self.resolution.id.sole_partition(), self.name)
    }

    /// Continues with the occupant of the next place. Tells whether the walk is over.
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

    /// The result. `None` if the walk found nothing below its prefix: then it knows too little of the prefix's directory.
    pub fn resolution(self) -> Option<Resolution> {
        (!self.is_at_prefix).then_some(self.resolution)
    }
}

/// Advances all walks together, one level at a time. Each level has three steps, each done for all walks before the next: hash
/// and prefetch the buckets; find and prefetch the cells; compare. So the probes of different walks wait for memory together.
/// (A pipeline in which every other walk is one step ahead was no faster.)
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
