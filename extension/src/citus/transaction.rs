//! What Citus is told of a change that is made in its shards without it ([`super::placement::local_tables_of`]), as it is told by its
//! own way to such a change: else it would commit a transaction that also changes another node in one phase, would send a
//! later statement over a connection that does not see this change, would split a shard whose change it does not see, and would
//! let a client prepare the transaction, which leaves what it was told to the session's next one.

use std::{
    cell::OnceCell,
    ffi::{CStr, c_void},
    mem,
};

use pgrx::pg_sys;

/// `LocalExecutionStatus`: statements on shards of this node run in this session, as the change does.
const REQUIRED: u32 = 0;
/// One was sent over a connection: so must be all that follow.
const DISABLED: u32 = 2;
/// `XactModificationType`: rows were changed. Less is none.
const DATA: u32 = 2;

thread_local! {
    static FUNCTIONS: OnceCell<Option<Functions>> = const { OnceCell::new() };
}

type Status = unsafe extern "C-unwind" fn() -> u32;
type SetStatus = unsafe extern "C-unwind" fn(u32);
type Begin = unsafe extern "C-unwind" fn();
type LockShard = unsafe extern "C-unwind" fn(i64, pg_sys::LOCKMODE);

/// Of Citus' library.
#[derive(Clone, Copy)]
struct Functions {
    status: Status,
    set_status: SetStatus,
    use_two_phases: Begin,
    /// Makes the transaction one of Citus', which costs nothing while no other node takes part.
    coordinate: Begin,
    lock_shard: LockShard,
    /// What the transaction has changed so far.
    changed: *mut u32,
}

impl Functions {
    /// `None`: a Citus that does not export them, as one built for PostgreSQL 16 and later.
    fn load() -> Option<Self> {
        let load = |name: &CStr| {
            // SAFETY: names are NUL-terminated; the library is loaded since the server started, and stays.
            let found = unsafe {
                pg_sys::load_external_function(c"$libdir/citus".as_ptr(), name.as_ptr(), false, std::ptr::null_mut())
            };
            (!found.is_null()).then_some(found)
        };
        // SAFETY: as Citus 11 to 13 declare them (local_executor.h, resource_lock.h, transaction_management.h). The last is a
        // variable.
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

/// A change on this node is about to be made, whichever way: if its rows go over a connection to this node, its message does
/// not, and both are to commit together.
pub fn use_two_phases() {
    if let Some(citus) = functions() {
        // SAFETY: as declared; sets a flag.
        unsafe { (citus.use_two_phases)() };
    }
}

/// A change of this shard, which is on this node as far as is known, is about to be made. Until the transaction ends the shard
/// stays where it is: whoever moves or splits it waits for the lock that is taken here, as for a change that Citus carries out
/// itself; and who does so just now is waited for. `false`: the rows must be written Citus' own way.
pub fn announce_change(shard: i64) -> bool {
    let Some(citus) = functions() else { return false };
    // SAFETY: as declared. The first reads; the others may raise, so they are called inside of pgrx's guard.
    unsafe {
        let status = (citus.status)();
        if status == DISABLED || (status != REQUIRED && !is_local_execution_on()) {
            return false;
        }
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            (citus.coordinate)();
            (citus.set_status)(REQUIRED);
            (citus.lock_shard)(shard, pg_sys::ShareLock as pg_sys::LOCKMODE);
        });
        *citus.changed = (*citus.changed).max(DATA);
    }
    true
}

fn is_local_execution_on() -> bool {
    // SAFETY: the setting is a string, or not there.
    unsafe {
        let setting = pg_sys::GetConfigOption(c"citus.enable_local_execution".as_ptr(), true, false);
        !setting.is_null() && CStr::from_ptr(setting) == c"on"
    }
}
