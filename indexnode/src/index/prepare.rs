//! The checks of a directory rename, made where its lock is taken: when the log entry is applied (PROTOCOLS 23).
//!
//! No directory that another rename holds may lie on either path. That keeps the tree free of cycles: of renames that
//! together would close one, the last to be prepared finds the lock, or the effect, of the next on its way.

use mantle_types::{
    DirectoryId, Epoch, Error, ErrorCode, RequestKey, Result, limits::PATH_DEPTH_MAX, name::check_name,
    permission::Access,
};

use super::{
    command::{Prepare, PreparedRename},
    locks::{Lock, Locks},
    resolve::{Resolution, walk},
    table::{Directory, IndexTable},
};

/// A path that was walked: how far, and over which directories (the root first).
struct Walked {
    resolution: Resolution,
    directories: Vec<Directory>,
}

/// Resolves and judges; the lock is not taken yet.
pub(super) fn check(
    table: &IndexTable,
    locks: &Locks,
    epoch: Epoch,
    attempt: u64,
    prepare: &Prepare,
) -> Result<(PreparedRename, Lock)> {
    let (source_name, _) = split(&prepare.source)?;
    let (destination_name, destination_parents) = split(&prepare.destination)?;
    check_name(destination_name)?;
    if prepare.destination.len() > PATH_DEPTH_MAX {
        return Err(ErrorCode::PathTooDeep.into());
    }
    let source = walked(table, locks, prepare, &prepare.source, "source")?;
    let to_parent = walked(table, locks, prepare, destination_parents, "parent of the destination")?;
    let [.., from, moved] = source.directories[..] else {
        return Err(Error::new(
            ErrorCode::Internal,
            "the walk to the source passed fewer directories than its path has",
        ));
    };
    let into = *to_parent.directories.last().unwrap_or(&from);
    allow(&from, prepare, Access::Write, "parent of the source")?;
    allow(&into, prepare, Access::Search, "parent of the destination")?;
    allow(&into, prepare, Access::Write, "parent of the destination")?;
    let request = RequestKey { ns: source.resolution.ns, ..prepare.request };
    let destination_pid = into.id.sole_partition();
    let occupant = table.lookup(destination_pid, destination_name);
    if locks.get(&request).is_some() {
        return Err(Error::new(ErrorCode::Locked, "an earlier attempt of this request holds its lock"));
    }
    if source.resolution.crossed_lock
        || to_parent.resolution.crossed_lock
        || locks.touch(destination_pid, destination_name, occupant.map(|directory| directory.id))
    {
        return Err(ErrorCode::Locked.into());
    }
    if to_parent.directories.iter().chain(&occupant).any(|directory| directory.id == moved.id) {
        return Err(ErrorCode::RenameLoop.into());
    }
    let victim = victim(occupant, prepare.overwrite)?;
    let source_pid = from.id.sole_partition();
    let lock = Lock {
        request,
        attempt,
        source_id: moved.id,
        source: (source_pid, source_name.to_owned()),
        destination: (destination_pid, destination_name.to_owned()),
        lock_ms: prepare.lock_ms,
    };
    let prepared = PreparedRename {
        attempt,
        epoch,
        ns: request.ns,
        source_pid,
        source_id: moved.id,
        source_version: moved.version,
        destination_pid,
        victim,
    };
    Ok((prepared, lock))
}

fn split(path: &[String]) -> Result<(&str, &[String])> {
    let (name, parents) = path
        .split_last()
        .ok_or_else(|| Error::new(ErrorCode::InvalidArgument, "a namespace's root is neither renamed nor replaced"))?;
    Ok((name, parents))
}

fn walked(table: &IndexTable, locks: &Locks, prepare: &Prepare, path: &[String], what: &str) -> Result<Walked> {
    let mut directories = Vec::with_capacity(path.len() + 1);
    let resolution =
        walk(table, locks, &prepare.namespace, path, &prepare.caller, |directory| directories.push(*directory));
    match resolution.outcome {
        Ok(()) => Ok(Walked { resolution, directories }),
        // What is missing may be under way to this very place.
        Err(ErrorCode::NotFound) if resolution.crossed_lock => Err(ErrorCode::Locked.into()),
        Err(ErrorCode::NotFound) => Err(Error::new(ErrorCode::NotFound, format!("the {what} does not exist"))),
        Err(code) => Err(code.into()),
    }
}

fn allow(directory: &Directory, prepare: &Prepare, access: Access, what: &str) -> Result<()> {
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
