//! The checks of a directory rename, or of a removal with all that is below, made where its lock is taken: when the log entry is applied (P23).
//!
//! No directory that another rename holds may lie on either path. That keeps the tree free of cycles: of renames that
//! together would close one, the last to be prepared finds the lock, or the effect, of the next on its way.

use mantle_types::{
    DirectoryId, Epoch, Error, ErrorCode, RequestKey, Result, limits::PATH_DEPTH_MAX, name::check_name,
    permission::Access,
};

use crate::failpoints::{self, Failpoint};

use super::{
    command::{Prepare, PreparedRename},
    locks::{Lock, Locks, Place},
    record::{Directory, directory_of},
    resolve::{Resolution, walk},
    table::IndexTable,
};

/// A path that was walked: how far, and over which directories (the root first).
struct WalkedPath {
    resolution: Resolution,
    directories: Vec<Directory>,
}

impl WalkedPath {
    /// The parent of the directory that was walked to, and that directory.
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

/// Resolves and judges; the lock is not taken yet.
pub(super) fn check(
    table: &IndexTable,
    locks: &Locks,
    epoch: Epoch,
    attempt: u64,
    prepare: &Prepare,
) -> Result<(PreparedRename, Lock)> {
    if prepare.remove {
        return check_removal(table, locks, epoch, attempt, prepare);
    }
    split(&prepare.source)?;
    let (destination_name, destination_parents) = split(&prepare.destination)?;
    check_name(destination_name)?;
    if prepare.destination.len() > PATH_DEPTH_MAX {
        return Err(ErrorCode::PathTooDeep.into());
    }
    let source = walked(table, locks, prepare, &prepare.source, "source")?;
    let to_parent = walked(table, locks, prepare, destination_parents, "parent of the destination")?;
    let (from, moved) = source.parent_and_last()?;
    let into = *to_parent.directories.last().unwrap_or(&from);
    check_access(&from, prepare, Access::Write, "parent of the source")?;
    check_access(&into, prepare, Access::Search, "parent of the destination")?;
    check_access(&into, prepare, Access::Write, "parent of the destination")?;
    let destination_pid = into.id.sole_partition();
    let occupant = table.lookup(destination_pid, destination_name);
    check_no_lock_held(locks, prepare, &source)?;
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
    let victim = victim(occupant, prepare.overwrite)?;
    grant(epoch, attempt, prepare, &source, (destination_pid, destination_name.to_owned()), victim)
}

/// A removal is a rename into the trash: nothing is there that could be in the way, and nothing below it that could make
/// a cycle. The caller must be allowed to change the directory too, not only its parent.
fn check_removal(
    table: &IndexTable,
    locks: &Locks,
    epoch: Epoch,
    attempt: u64,
    prepare: &Prepare,
) -> Result<(PreparedRename, Lock)> {
    split(&prepare.source)?;
    let source = walked(table, locks, prepare, &prepare.source, "directory")?;
    let (from, removed) = source.parent_and_last()?;
    check_access(&from, prepare, Access::Write, "parent of the directory")?;
    check_access(&removed, prepare, Access::Write, "directory")?;
    check_no_lock_held(locks, prepare, &source)?;
    if source.resolution.crossed_lock || is_locked_below(table, locks, removed.id) {
        return Err(ErrorCode::Locked.into());
    }
    grant(epoch, attempt, prepare, &source, (DirectoryId::TRASH.sole_partition(), removed.id.to_string()), None)
}

/// Does a rename under way take something out of a directory's tree, or put something into it? It could do so after the
/// removal was acknowledged, and would move a tree that is being emptied. (Later renames find the removal's lock, or no
/// path.) Few locks are held at a time, so each is followed upwards.
fn is_locked_below(table: &IndexTable, locks: &Locks, top: DirectoryId) -> bool {
    let leads_to_top = |place: &Place| {
        let mut id = directory_of(place.0);
        // Bounded: the streams of several sources may close a cycle for a moment.
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

/// A newer attempt supersedes the older one only after that was aborted.
fn check_no_lock_held(locks: &Locks, prepare: &Prepare, source: &WalkedPath) -> Result<()> {
    match locks.get(&source.request(prepare)) {
        None => Ok(()),
        Some(_) => Err(Error::new(ErrorCode::Locked, "an earlier attempt of this request holds its lock")),
    }
}

/// The answer, and the lock to be taken.
fn grant(
    epoch: Epoch,
    attempt: u64,
    prepare: &Prepare,
    source: &WalkedPath,
    destination: Place,
    victim: Option<DirectoryId>,
) -> Result<(PreparedRename, Lock)> {
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
        victim,
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

fn split(path: &[String]) -> Result<(&str, &[String])> {
    let (name, parents) = path
        .split_last()
        .ok_or_else(|| Error::new(ErrorCode::InvalidArgument, "a namespace's root is neither renamed nor replaced"))?;
    Ok((name, parents))
}

fn walked(table: &IndexTable, locks: &Locks, prepare: &Prepare, path: &[String], what: &str) -> Result<WalkedPath> {
    let mut directories = Vec::with_capacity(path.len() + 1);
    let components = path.iter().map(String::as_str);
    let resolution =
        walk(table, locks, &prepare.namespace, components, &prepare.caller, |directory| directories.push(*directory));
    match resolution.outcome {
        Ok(()) => Ok(WalkedPath { resolution, directories }),
        // What is missing may be under way to this very place.
        Err(ErrorCode::NotFound) if resolution.crossed_lock => Err(ErrorCode::Locked.into()),
        Err(ErrorCode::NotFound) => Err(Error::new(ErrorCode::NotFound, format!("the {what} does not exist"))),
        Err(code) => Err(code.into()),
    }
}

fn check_access(directory: &Directory, prepare: &Prepare, access: Access, what: &str) -> Result<()> {
    if directory.permission.allows(&prepare.caller, access) {
        return Ok(());
    }
    let verb = if access == Access::Write { "change" } else { "search" };
    Err(Error::new(ErrorCode::AccessDenied, format!("the caller may not {verb} the {what}")))
}

/// What the rename may replace: a directory without directories in it (PostgreSQL checks for objects).
fn victim(occupant: Option<Directory>, overwrite: bool) -> Result<Option<DirectoryId>> {
    match occupant {
        None => Ok(None),
        Some(directory) if overwrite && directory.children == 0 => Ok(Some(directory.id)),
        Some(_) if overwrite => Err(Error::new(ErrorCode::AlreadyExists, "the destination exists and is not empty")),
        Some(_) => Err(Error::new(ErrorCode::AlreadyExists, "the destination exists")),
    }
}
