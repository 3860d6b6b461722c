//! Lookup: a path to its directory, in one walk over the table.
//!
//! Every ancestor counts: the caller needs search permission on each directory passed, the namespace's root included.
//! The final directory's own permission is returned, not judged: that depends on what the caller wants to do there.

use mantle_types::{Caller, DirectoryId, ErrorCode, NamespaceId, Permission, permission::Access};

use super::{
    locks::Locks,
    table::{Directory, IndexTable, directory_of},
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
    /// A directory passed, or the missing place, belongs to a rename under way: PostgreSQL decides (PROTOCOLS 26).
    pub crossed_lock: bool,
}

impl Resolution {
    /// Nothing of the path exists.
    pub(super) fn nowhere(code: ErrorCode) -> Self {
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

    fn stand_at(&mut self, directory: &Directory) {
        self.id = directory.id;
        self.parent_id = directory_of(directory.pid);
        self.permission = directory.permission;
        self.version = directory.version;
    }
}

/// Walks from a namespace's root along `components`, telling `passed` of every directory that it comes to.
pub(super) fn walk<S: AsRef<str>>(
    table: &IndexTable,
    locks: &Locks,
    namespace: &str,
    components: &[S],
    caller: &Caller,
    mut passed: impl FnMut(&Directory),
) -> Resolution {
    let super_root = DirectoryId::SUPER_ROOT.sole_partition();
    let Some(here) = table.lookup(super_root, namespace) else {
        return Resolution::nowhere(ErrorCode::NamespaceNotFound);
    };
    let mut resolution = Resolution::nowhere(ErrorCode::NotFound);
    resolution.ns = NamespaceId(here.id.0);
    resolution.stand_at(&here);
    passed(&here);
    descend(table, locks, resolution, components, caller, passed)
}

/// The first components of a path, and the directory they are known to lead to.
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'a> {
    /// The components; at least one.
    pub components: &'a [&'a str],
    /// The directories on the way, the namespace's root first: one more than components.
    pub ids: &'a [DirectoryId],
}

/// Walks on from a known prefix, whose directories the caller may search. `None`: its directory is not there.
pub(super) fn walk_below<S: AsRef<str>>(
    table: &IndexTable,
    locks: &Locks,
    prefix: &Prefix<'_>,
    components: &[S],
    caller: &Caller,
) -> Option<Resolution> {
    let (first, last) = (prefix.ids.first()?, prefix.ids.last()?);
    let here = table.get(*last)?;
    let mut resolution = Resolution::nowhere(ErrorCode::NotFound);
    resolution.ns = NamespaceId(first.0);
    resolution.depth = prefix.components.len();
    resolution.stand_at(&here);
    resolution.crossed_lock = crosses(locks, prefix);
    Some(descend(table, locks, resolution, components, caller, |_| {}))
}

/// Does the way over a prefix touch a lock? As a walk over it would find.
fn crosses(locks: &Locks, prefix: &Prefix<'_>) -> bool {
    !locks.is_empty()
        && prefix.components.iter().zip(prefix.ids.windows(2)).any(|(name, pair)| {
            let [above, below] = [pair[0], pair[1]];
            locks.touch(above.sole_partition(), name, Some(below))
        })
}

/// Goes on from where a resolution stands.
fn descend<S: AsRef<str>>(
    table: &IndexTable,
    locks: &Locks,
    mut resolution: Resolution,
    components: &[S],
    caller: &Caller,
    mut passed: impl FnMut(&Directory),
) -> Resolution {
    for component in components {
        if !resolution.permission.allows(caller, Access::Search) {
            resolution.outcome = Err(ErrorCode::AccessDenied);
            return resolution;
        }
        let pid = resolution.id.sole_partition();
        let next = table.lookup(pid, component.as_ref());
        resolution.crossed_lock |= locks.touch(pid, component.as_ref(), next.map(|directory| directory.id));
        let Some(next) = next else { return resolution };
        resolution.depth += 1;
        resolution.stand_at(&next);
        passed(&next);
    }
    resolution.outcome = Ok(());
    resolution
}
