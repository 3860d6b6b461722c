//! What Citus is told of a change that is made in its shards without it ([`crate::distribution::home_of`]), as it is told by its
//! own way to such a change: else it would commit a transaction that also changes another node in one phase, and would send a
//! later statement over a connection that does not see this change. Not told: what forbids to split a shard in the same
//! transaction.

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

thread_local! {
    static FUNCTIONS: OnceCell<Option<Functions>> = const { OnceCell::new() };
}

type Status = unsafe extern "C-unwind" fn() -> u32;
type SetStatus = unsafe extern "C-unwind" fn(u32);
type UseTwoPhases = unsafe extern "C-unwind" fn();

/// Of Citus' library.
#[derive(Clone, Copy)]
struct Functions {
    status: Status,
    set_status: SetStatus,
    use_two_phases: UseTwoPhases,
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
        // SAFETY: as Citus 11 to 13 declare them (local_executor.h, transaction_management.h).
        unsafe {
            Some(Self {
                status: mem::transmute::<*mut c_void, Status>(load(c"GetCurrentLocalExecutionStatus")?),
                set_status: mem::transmute::<*mut c_void, SetStatus>(load(c"SetLocalExecutionStatus")?),
                use_two_phases: mem::transmute::<*mut c_void, UseTwoPhases>(load(c"Use2PCForCoordinatedTransaction")?),
            })
        }
    }
}

/// A change of a shard on this node is about to be made. `false`: the rows must be written Citus' own way.
pub fn announce_change() -> bool {
    let Some(citus) = FUNCTIONS.with(|functions| *functions.get_or_init(Functions::load)) else { return false };
    // SAFETY: as declared. The first sets a flag, the second reads; the third may raise, so it is called inside of pgrx's guard.
    unsafe {
        // Whichever way: if rows go over a connection to this node, the change's message does not.
        (citus.use_two_phases)();
        match (citus.status)() {
            REQUIRED => true,
            DISABLED => false,
            _ if !is_local_execution_on() => false,
            _ => {
                pg_sys::ffi::pg_guard_ffi_boundary(|| (citus.set_status)(REQUIRED));
                true
            }
        }
    }
}

fn is_local_execution_on() -> bool {
    // SAFETY: the setting is a string, or not there.
    unsafe {
        let setting = pg_sys::GetConfigOption(c"citus.enable_local_execution".as_ptr(), true, false);
        !setting.is_null() && CStr::from_ptr(setting) == c"on"
    }
}
