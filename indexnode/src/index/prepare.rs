//! The checks of a directory rename, or of a recursive removal. They run where the lock is taken: when the log entry is applied
//! (P23).
//!
//! Neither path may contain a directory that another rename has locked. That keeps the tree free of cycles: among renames that
//! would form one together, the last to be prepared finds another one's lock, or its effect, on its path.

use mantle_types::{
    DirectoryId, Epoch, Error, ErrorCode, Permission, RequestKey, Result,
    limits::{CHECKED_DIRECTORIES_MAX, PATH_DEPTH_MAX},
    name::check_name,
    permission::Access,
};

use crate::failpoints::{self, Failpoint};

use super::{
    command::{FIRST_RULE, Prepare, PrepareByRule, PreparedRename},
    locks::{Lock, Locks, Place},
    record::{Directory, directory_of},
    resolve::{Resolution, walk},
    table::IndexTable,
};

/// A path that was walked to its end, with the directories on it, the root first.
struct WalkedPath {
    resolution: Resolution,
    directories: Vec<Directory>,
}

impl WalkedPath {
    fn parent_and_last(&self) -> Result<(Directory, Directory)> {
        match self.directories[..] {
            [.., parent, last] => Ok((parent, last)),
            _ => Err(Error::new(ErrorCode::Internal, "the walk passed fewer directories than its path has")),
        }
    }

    fn request(&self, prepare: &Prepare) -> RequestKey {
        RequestKey { ns: self.resolution.ns, ..prepare.request }
    }
}

pub(super) struct Check<'a> {
    pub table: &'a IndexTable,
    pub locks: &'a Locks,
    pub epoch: Epoch,
    pub attempt: u64,
    pub by: &'a PrepareByRule,
}

impl Check<'_> {
    /// Resolves the paths and checks the rename or removal. Does not take the lock yet.
    pub(super) fn run(&self) -> Result<(PreparedRename, Lock)> {
        if self.by.prepare.remove { self.removal() } else { self.rename() }
    }

    fn rename(&self) -> Result<(PreparedRename, Lock)> {
        let Self { table, locks, by: PrepareByRule { prepare, rule, .. }, .. } = *self;
        split(&prepare.source)?;
        let (destination_name, destination_parents) = split(&prepare.destination)?;
        check_name(destination_name)?;
        if prepare.destination.len() > PATH_DEPTH_MAX {
            return Err(ErrorCode::PathTooDeep.into());
        }
        let source = self.walk_path(&prepare.source, "source")?;
        let to_parent = self.walk_path(destination_parents, "parent of the destination")?;
        let (from, moved) = source.parent_and_last()?;
        let into = *to_parent.directories.last().unwrap_or(&from);
        self.check_access(&from, Access::Write, "parent of the source")?;
        self.check_access(&into, Access::Search, "parent of the destination")?;
        self.check_access(&into, Access::Write, "parent of the destination")?;
        if *rule > FIRST_RULE {
            self.check_sticky(&from, &moved)?;
            // As where a directory has an entry for its parent, which the move changes.
            let stays = from.id == into.id || moved.permission.may_describe(&prepare.caller);
            refused_unless(stays, "write to the directory, and so not move it to another one")?;
        }
        let destination_pid = into.id.sole_partition();
        let occupant = table.lookup(destination_pid, destination_name);
        self.check_no_lock_held(&source)?;
        let is_locked = source.resolution.crossed_lock
            || to_parent.resolution.crossed_lock
            || locks.covers(destination_pid, destination_name, occupant.map(|directory| directory.id));
        if is_locked && !failpoints::is_hit(Failpoint::PrepareThroughLocks) {
            return Err(ErrorCode::Locked.into());
        }
        let is_loop = to_parent.directories.iter().chain(&occupant).any(|directory| directory.id == moved.id);
        if is_loop && !failpoints::is_hit(Failpoint::PrepareBelowItself) {
            return Err(ErrorCode::RenameLoop.into());
        }
        let replaced = replaceable(occupant, prepare.overwrite)?;
        if let Some(occupant) = occupant.filter(|_| *rule > FIRST_RULE) {
            self.check_sticky(&into, &occupant)?;
        }
        self.grant(&source, (destination_pid, destination_name.to_owned()), Some(into.permission), replaced)
    }

    /// A removal is a rename into the trash, where no name conflicts and no cycle can form. The caller needs to be allowed to
    /// remove everything below, too, unless it owns the namespace.
    fn removal(&self) -> Result<(PreparedRename, Lock)> {
        let source = &self.by.prepare.source;
        split(source)?;
        let source = self.walk_path(source, "directory")?;
        let (from, removed) = source.parent_and_last()?;
        self.check_access(&from, Access::Write, "parent of the directory")?;
        if self.by.rule == FIRST_RULE {
            self.check_access(&removed, Access::Write, "directory")?;
        } else {
            self.check_sticky(&from, &removed)?;
            let root = source.directories.first().unwrap_or(&from);
            if !root.permission.is_owned_by(&self.by.prepare.caller) {
                self.check_below(&removed)?;
            }
        }
        self.check_no_lock_held(&source)?;
        if source.resolution.crossed_lock || is_locked_below(self.table, self.locks, removed.id) {
            return Err(ErrorCode::Locked.into());
        }
        self.grant(&source, (DirectoryId::TRASH.sole_partition(), removed.id.to_string()), None, None)
    }

    /// Checks that the caller could empty each directory at or below the removed one. The proposer names them, because the index
    /// cannot go downwards. They are all if every one but the first has its parent among them, and they have no more children
    /// than that. Cost: some lookups for each.
    fn check_below(&self, removed: &Directory) -> Result<()> {
        let PrepareByRule { prepare, below, .. } = self.by;
        if below.len() > CHECKED_DIRECTORIES_MAX {
            return Err(ErrorCode::TreeTooLarge.into());
        }
        let mut ids = below.clone();
        ids.sort_unstable();
        ids.dedup();
        let (mut children, mut are_linked, mut are_open) = (0, ids.binary_search(&removed.id).is_ok(), true);
        for id in &ids {
            let Some(directory) = self.table.get(*id) else {
                are_linked = false;
                break;
            };
            children += directory.children as usize;
            are_linked &= *id == removed.id || ids.binary_search(&directory_of(directory.pid)).is_ok();
            are_open &= directory.permission.may_empty(&prepare.caller);
        }
        if !are_linked || children + 1 != ids.len() {
            return Err(Error::new(ErrorCode::Locked, "directories are being made or removed below the directory"));
        }
        refused_unless(are_open, "remove everything below the directory")
    }

    /// A newer attempt replaces an older one only after the older one is aborted (P20).
    fn check_no_lock_held(&self, source: &WalkedPath) -> Result<()> {
        match self.locks.get(&source.request(&self.by.prepare)) {
            None => Ok(()),
            Some(_) => Err(Error::new(ErrorCode::Locked, "an earlier attempt of this request holds its lock")),
        }
    }

    fn grant(
        &self,
        source: &WalkedPath,
        destination: Place,
        destination_parent: Option<Permission>,
        replaced: Option<DirectoryId>,
    ) -> Result<(PreparedRename, Lock)> {
        let Self { epoch, attempt, by: PrepareByRule { prepare, .. }, .. } = *self;
        let (source_name, _) = split(&prepare.source)?;
        let (from, moved) = source.parent_and_last()?;
        let request = source.request(prepare);
        let source_pid = from.id.sole_partition();
        let prepared = PreparedRename {
            attempt,
            epoch,
            ns: request.ns,
            source_pid,
            source_id: moved.id,
            source_version: moved.version,
            destination_pid: destination.0,
            replaced,
            source_parent: from.permission,
            destination_parent,
        };
        let lock = Lock {
            request,
            attempt,
            source_id: moved.id,
            source: (source_pid, source_name.to_owned()),
            destination,
            lock_ms: prepare.lock_ms,
            parts_applied: (false, false),
        };
        Ok((prepared, lock))
    }

    fn walk_path(&self, path: &[String], what: &str) -> Result<WalkedPath> {
        let Self { table, locks, by: PrepareByRule { prepare, .. }, .. } = *self;
        let mut directories = Vec::with_capacity(path.len() + 1);
        let components = path.iter().map(String::as_str);
        let resolution = walk(table, locks, &prepare.namespace, components, &prepare.caller, |directory| {
            directories.push(*directory)
        });
        match resolution.outcome {
            Ok(()) => Ok(WalkedPath { resolution, directories }),
            // A rename may be about to move a directory to the missing place.
            Err(ErrorCode::NotFound) if resolution.crossed_lock => Err(ErrorCode::Locked.into()),
            Err(ErrorCode::NotFound) => Err(Error::new(ErrorCode::NotFound, format!("the {what} does not exist"))),
            Err(code) => Err(code.into()),
        }
    }

    /// The sticky bit of a directory against the owner of an entry that is removed from it, or replaced in it.
    fn check_sticky(&self, parent: &Directory, entry: &Directory) -> Result<()> {
        let is_allowed = parent.permission.sticky_allows(&self.by.prepare.caller, entry.permission.owner);
        refused_unless(is_allowed, "remove another one's entry from a directory with the sticky bit")
    }

    fn check_access(&self, directory: &Directory, access: Access, what: &str) -> Result<()> {
        if directory.permission.allows(&self.by.prepare.caller, access) {
            return Ok(());
        }
        let verb = if access == Access::Write { "change" } else { "search" };
        Err(Error::new(ErrorCode::AccessDenied, format!("the caller may not {verb} the {what}")))
    }
}

fn refused_unless(is_allowed: bool, what: &str) -> Result<()> {
    let refusal = || Error::new(ErrorCode::AccessDenied, format!("the caller may not {what}"));
    if is_allowed { Ok(()) } else { Err(refusal()) }
}

/// Tells whether a prepared rename moves something out of the directory's tree or into it. It could commit after the removal is
/// acknowledged, while the tree is being emptied. (Later renames find the removal's lock, or no path.) Few locks exist at a
/// time, so this follows each one upwards.
fn is_locked_below(table: &IndexTable, locks: &Locks, top: DirectoryId) -> bool {
    let leads_to_top = |place: &Place| {
        let mut id = directory_of(place.0);
        // Bounded: the streams of several sources may form a cycle for a moment.
        for _ in 0..=table.len() {
            match table.get(id) {
                _ if id == top => return true,
                None => return false,
                Some(directory) => id = directory_of(directory.pid),
            }
        }
        true
    };
    locks.iter().any(|lock| leads_to_top(&lock.source) || leads_to_top(&lock.destination))
}

fn split(path: &[String]) -> Result<(&str, &[String])> {
    let (name, parents) = path
        .split_last()
        .ok_or_else(|| Error::new(ErrorCode::InvalidArgument, "a namespace's root is neither renamed nor replaced"))?;
    Ok((name, parents))
}

/// The directory that the rename replaces: one without child directories. (PostgreSQL checks that it has no objects.)
fn replaceable(occupant: Option<Directory>, overwrite: bool) -> Result<Option<DirectoryId>> {
    match occupant {
        None => Ok(None),
        Some(directory) if overwrite && directory.children == 0 => Ok(Some(directory.id)),
        Some(_) if overwrite => Err(Error::new(ErrorCode::AlreadyExists, "the destination exists and is not empty")),
        Some(_) => Err(Error::new(ErrorCode::AlreadyExists, "the destination exists")),
    }
}
