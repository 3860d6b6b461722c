//! Tells Citus of changes that are made in its shards without it (P41; see [`super::placement::local_tables_of`]).
//!
//! Citus must record such a change like one of its own. Otherwise it would commit a transaction that also changes
//! another node in one phase; send a later statement over a connection that does not see the change; split a shard
//! whose change it does not see; or let a client prepare the transaction, which leaves its state to the session's next
//! one.

use std::{
    cell::OnceCell,
    ffi::{CStr, c_void},
    mem,
};

use pgrx::pg_sys;

/// `LocalExecutionStatus`: statements on this node's shards run in this session, like the change.
const REQUIRED: u32 = 0;
/// The same: one was sent over a connection, so all later ones must be.
const DISABLED: u32 = 2;
/// `XactModificationType`: rows were changed. Smaller values mean that none were.
const DATA: u32 = 2;

thread_local! {
    static FUNCTIONS: OnceCell<Option<Functions>> = const { OnceCell::new() };
}

type Status = unsafe extern "C-unwind" fn() -> u32;
type SetStatus = unsafe extern "C-unwind" fn(u32);
type Begin = unsafe extern "C-unwind" fn();
type LockShard = unsafe extern "C-unwind" fn(i64, pg_sys::LOCKMODE);

/// Functions of Citus' library.
#[derive(Clone, Copy)]
struct Functions {
    status: Status,
    set_status: SetStatus,
    use_two_phases: Begin,
    /// Makes the transaction a coordinated one, which costs nothing while no other node takes part.
    coordinate: Begin,
    lock_shard: LockShard,
    /// The kind of changes that the transaction has made so far.
    changed: *mut u32,
}

impl Functions {
    /// `None` if this Citus does not export them, as if it is built for PostgreSQL 16 or later.
    fn load() -> Option<Self> {
        let load = |name: &CStr| {
            // SAFETY: the names end with NUL; the library has been loaded since the server started, and stays.
            let found = unsafe {
                pg_sys::load_external_function(c"$libdir/citus".as_ptr(), name.as_ptr(), false, std::ptr::null_mut())
            };
            (!found.is_null()).then_some(found)
        };
        // SAFETY: these are the declarations of Citus 11 to 13 (local_executor.h, resource_lock.h,
        // transaction_management.h). The last is a variable.
        unsafe {
            Some(Self {
                status: mem::transmute::<*mut c_void, Status>(load(c"GetCurrentLocalExecutionStatus")?),
                set_status: mem::transmute::<*mut c_void, SetStatus>(load(c"SetLocalExecutionStatus")?),
                use_two_phases: mem::transmute::<*mut c_void, Begin>(load(c"Use2PCForCoordinatedTransaction")?),
                coordinate: mem::transmute::<*mut c_void, Begin>(load(c"UseCoordinatedTransaction")?),
                lock_shard: mem::transmute::<*mut c_void, LockShard>(load(c"LockShardDistributionMetadata")?),
                changed: load(c"XactModificationLevel")?.cast::<u32>(),
            })
        }
    }
}

fn functions() -> Option<Functions> {
    FUNCTIONS.with(|functions| *functions.get_or_init(Functions::load))
}

/// Demands a commit in two phases; called before any change on this node. If the rows go over a connection to this
/// node, the message does not, and both must commit together.
pub fn use_two_phases() {
    if let Some(citus) = functions() {
        // SAFETY: declared so; it sets a flag.
        unsafe { (citus.use_two_phases)() };
    }
}

/// Announces a change of a shard that is on this node by the map. `false` if Citus must write the rows. The lock taken
/// here keeps the shard in place until the transaction ends, as for Citus' own changes: moves and splits wait for it,
/// and it waits for those that are running.
pub fn announce_change(shard: i64) -> bool {
    let Some(citus) = functions().filter(runs_here) else { return false };
    // SAFETY: declared so. They may raise, so they are called in pgrx's guard.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            (citus.coordinate)();
            (citus.set_status)(REQUIRED);
            (citus.lock_shard)(shard, pg_sys::ShareLock as pg_sys::LOCKMODE);
        });
        *citus.changed = (*citus.changed).max(DATA);
    }
    true
}

/// Announces a read of a shard that is on this node by the map: later statements run in this session, too. `false` if
/// Citus must read the rows, because this session might not see what it has changed over a connection.
pub fn announce_read() -> bool {
    let Some(citus) = functions().filter(runs_here) else { return false };
    // SAFETY: declared so; it may raise.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| (citus.set_status)(REQUIRED)) };
    true
}

/// Whether statements on this node's shards may run in this session.
fn runs_here(citus: &Functions) -> bool {
    // SAFETY: declared so; it only reads.
    let status = unsafe { (citus.status)() };
    status == REQUIRED || (status != DISABLED && is_local_execution_on())
}

fn is_local_execution_on() -> bool {
    // SAFETY: the setting is a string, or null.
    unsafe {
        let setting = pg_sys::GetConfigOption(c"citus.enable_local_execution".as_ptr(), true, false);
        !setting.is_null() && CStr::from_ptr(setting) == c"on"
    }
}
