//! Who may change what, checked under the latch of the directory (P56).
//!
//! A directory's permission is in its entry, which on Citus may be on another node than the partition that a verb
//! latches. So the caller passes the permission that its lookup found. It is right as long as the permission was never
//! changed. After a change the directory's attribute record has a copy, which the latch protects and which takes
//! precedence.

use mantle_types::{Caller, ErrorCode, Permission, permission::NewAttributes};
use pgrx::prelude::*;

use super::key::entry_key;
use crate::{
    citus::placement::open_local,
    fault::{Fault, sqlstate},
    postgres::{
        probe::Table,
        row::{Row, value},
        saved_plan::SavedPlan,
    },
};

/// The parent of the namespaces' roots: everybody finds them, and only uid 0 may change what is in it.
const SUPER_ROOT: Permission = Permission { owner: 0, group: 0, mode: 0o711 };

thread_local! {
    // For a shard that only Citus can read.
    static RECORD: SavedPlan = const { SavedPlan::new(
        c"SELECT owner, grp, mode FROM mantle.meta WHERE pid = $1 AND name = '/_ATTR' AND ts = 0", &[pg_sys::INT8OID]) };
}

/// The permission in an attribute record; `None` if the directory's was never changed.
pub fn recorded(row: &Row) -> Option<Permission> {
    let mode = row.named::<i32>(c"mode")?;
    Some(permission(row.named(c"owner"), row.named(c"grp"), Some(mode)))
}

/// The same as the text that the checks take; NULL without a mode.
#[pg_extern(immutable, parallel_safe)]
fn permission_text(owner: Option<i32>, grp: Option<i32>, mode: Option<i32>) -> Option<String> {
    mode.map(|mode| permission(owner, grp, Some(mode)).to_string())
}

/// The caller of a verb: without one the principal, in no group.
pub fn caller_of(principal: i32, caller: Option<&str>) -> Result<Caller, ErrorCode> {
    match caller {
        Some(caller) => caller.parse().map_err(|_| ErrorCode::InvalidArgument),
        None => Ok(Caller { uid: principal as u32, gids: Vec::new() }),
    }
}

/// A permission that may be unknown, which lets only uid 0 pass.
pub fn known(permission: Option<&str>) -> Result<Permission, ErrorCode> {
    const CLOSED: Permission = Permission { owner: 0, group: 0, mode: 0 };
    permission.map_or(Ok(CLOSED), |text| text.parse().map_err(|_| ErrorCode::InvalidArgument))
}

fn refused_unless(allowed: Result<bool, ErrorCode>) -> Fault {
    match allowed {
        Ok(true) => None,
        Ok(false) => Some(sqlstate(ErrorCode::AccessDenied)),
        Err(code) => Some(sqlstate(code)),
    }
}

/// The permission in columns of an entry.
pub fn permission(owner: Option<i32>, grp: Option<i32>, mode: Option<i32>) -> Permission {
    let number = |of: Option<i32>| of.unwrap_or_default() as u32;
    Permission { owner: number(owner), group: number(grp), mode: number(mode) as u16 }
}

/// Owner, group and mode of a directory as they are under its latch: those of its attribute record, which are there since
/// they were changed, or those that the lookup found. NULL: neither is known. The directory's shard then stays on this
/// node until the transaction ends, so only a part that is about to write calls it.
#[pg_extern(volatile)]
fn permission_of(pid: Option<i64>, found: Option<&str>) -> Option<String> {
    let pid = pid?;
    if pid == 0 {
        return Some(SUPER_ROOT.to_string());
    }
    let changed = Spi::connect_mut(|_| match open_local(pid, |tables| Table::open(&tables.meta)) {
        Some(meta) => meta.find(&entry_key(pid, "/_ATTR"), recorded).flatten(),
        None => RECORD.with(|s| s.rows(&[value(pid)], recorded)).pop().flatten(),
    });
    changed.map(|permission| permission.to_string()).or_else(|| found.map(str::to_owned))
}

/// MT030 unless the caller may make entries in a directory of this permission.
#[pg_extern(immutable)]
fn creation_fault(principal: i32, caller: Option<&str>, directory: Option<&str>) -> Fault {
    refused_unless((|| Ok(known(directory)?.may_create(&caller_of(principal, caller)?)))())
}

/// MT030 unless the caller may remove an entry of this owner from a directory of this permission, or move it away.
#[pg_extern(immutable)]
fn removal_fault(principal: i32, caller: Option<&str>, directory: Option<&str>, owner: Option<i32>) -> Fault {
    let allowed = || {
        let (directory, caller) = (known(directory)?, caller_of(principal, caller)?);
        Ok(directory.may_create(&caller) && owner.is_none_or(|owner| directory.may_remove(&caller, owner as u32)))
    };
    refused_unless(allowed())
}

/// MT030 unless the caller may replace an object of this owner, group and mode in a directory of this permission.
#[pg_extern(immutable)]
fn replacement_fault(
    principal: i32,
    caller: Option<&str>,
    directory: Option<&str>,
    owner: Option<i32>,
    grp: Option<i32>,
    mode: Option<i32>,
) -> Fault {
    let object = permission(owner, grp, mode);
    refused_unless((|| Ok(known(directory)?.may_replace(&caller_of(principal, caller)?, &object)))())
}

/// MT030 if the condition is on the etag of an object that the caller may not read: the answer would tell the etag.
#[pg_extern(immutable)]
fn condition_fault(
    principal: i32,
    caller: Option<&str>,
    condition: Option<&str>,
    owner: Option<i32>,
    grp: Option<i32>,
    mode: Option<i32>,
) -> Fault {
    if matches!(condition, None | Some("*absent" | "*present")) {
        return None;
    }
    let object = permission(owner, grp, mode);
    refused_unless(caller_of(principal, caller).map(|caller| object.may_read(&caller)))
}

/// MT030 unless the caller finds an object of this owner, group and mode in a directory of this permission, and may read it.
/// Without an object (NULL) it says no more than whether the directory may be searched.
#[pg_extern(immutable)]
fn reading_fault(
    principal: i32,
    caller: Option<&str>,
    directory: Option<&str>,
    owner: Option<i32>,
    grp: Option<i32>,
    mode: Option<i32>,
) -> Fault {
    let allowed = || {
        let caller = caller_of(principal, caller)?;
        let is_found = known(directory)?.may_search(&caller);
        Ok(is_found && (mode.is_none() || permission(owner, grp, mode).may_read(&caller)))
    };
    refused_unless(allowed())
}

/// MT030 unless the caller may use an upload: it began it, owns the namespace, or is uid 0. Without a caller it is the gateway
/// itself, which ends uploads that nobody ends; without a principal there is no upload.
#[pg_extern(immutable)]
fn upload_fault(caller: Option<&str>, principal: Option<i32>, namespace_owner: Option<i32>) -> Fault {
    let (caller, principal) = (caller?, principal?);
    let may_use =
        |caller: Caller| caller.uid == 0 || [Some(principal), namespace_owner].contains(&Some(caller.uid as i32));
    refused_unless(caller_of(principal, Some(caller)).map(may_use))
}

/// MT030 unless the caller finds a namespace's root of this owner, group and mode. There is no directory above that it could
/// search, so it searches the root itself, or owns it.
#[pg_extern(immutable)]
fn root_fault(principal: i32, caller: Option<&str>, owner: Option<i32>, grp: Option<i32>, mode: Option<i32>) -> Fault {
    let root = permission(owner, grp, mode);
    refused_unless(caller_of(principal, caller).map(|caller| root.is_owned_by(&caller) || root.may_search(&caller)))
}

/// MT030 unless the caller may write metadata of a directory of this owner, group and mode.
#[pg_extern(immutable)]
fn metadata_fault(
    principal: i32,
    caller: Option<&str>,
    owner: Option<i32>,
    grp: Option<i32>,
    mode: Option<i32>,
) -> Fault {
    let entry = permission(owner, grp, mode);
    refused_unless(caller_of(principal, caller).map(|caller| entry.may_describe(&caller)))
}

/// MT030 unless the caller finds an entry of this owner, group and mode in its directory, and may give it these attributes;
/// NULL leaves one as it is.
#[pg_extern(immutable)]
#[allow(clippy::too_many_arguments)]
fn attributes_fault(
    principal: i32,
    caller: Option<&str>,
    directory: Option<&str>,
    owner: Option<i32>,
    grp: Option<i32>,
    mode: Option<i32>,
    new_owner: Option<i32>,
    new_grp: Option<i32>,
    new_mode: Option<i32>,
    has_metadata: bool,
) -> Fault {
    let number = |of: Option<i32>| of.map(|of| of as u32);
    let new = NewAttributes {
        owner: number(new_owner),
        group: number(new_grp),
        mode: new_mode.map(|mode| mode as u16),
        has_metadata,
    };
    let allowed = || {
        let caller = caller_of(principal, caller)?;
        let is_found = known(directory)?.may_search(&caller);
        Ok(is_found && permission(owner, grp, mode).refuses_attributes(&caller, &new).is_none())
    };
    refused_unless(allowed())
}
