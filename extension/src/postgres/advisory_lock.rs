//! Advisory locks of any class, and the wait for them.

use pgrx::pg_sys;

unsafe extern "C" {
    // Not bound by pgrx. Stable across versions 12 to 18.
    fn hash_bytes_extended(bytes: *const u8, length: i32, seed: u64) -> u64;
}

/// Lowers `lock_timeout` until it is dropped; an error unwinds through `drop` too. It changes the variable itself,
/// because the effect of `SET LOCAL` lasts until the transaction ends, and a function's SET costs a call some 0.3 µs more.
pub struct LockTimeoutLimit(i32);

impl LockTimeoutLimit {
    pub fn set(limit_ms: i32) -> Self {
        Self::change(|before| if before == 0 { limit_ms } else { before.min(limit_ms) })
    }

    /// Only where there is none.
    pub fn set_if_none(limit_ms: i32) -> Self {
        Self::change(|before| if before == 0 { limit_ms } else { before })
    }

    fn change(limit: impl FnOnce(i32) -> i32) -> Self {
        // SAFETY: a backend has one thread; the value is in the setting's range (0: no limit).
        unsafe {
            let before = pg_sys::LockTimeout;
            pg_sys::LockTimeout = limit(before);
            Self(before)
        }
    }
}

impl Drop for LockTimeoutLimit {
    fn drop(&mut self) {
        // SAFETY: as in `set`.
        unsafe { pg_sys::LockTimeout = self.0 };
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Shared,
    Exclusive,
}

/// How long a lock is held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    Transaction,
    Session,
}

/// Takes a lock; `false` if another session holds it and `wait` is false. `class` is the fourth field of the lock tag.
pub fn acquire(class: u16, key: u64, mode: Mode, hold: Hold, wait: bool) -> bool {
    // SAFETY: reads the backend's database id; LockAcquire copies the tag. An error (lock_timeout, deadlock, lock table
    // full) leaves through pgrx's guard.
    unsafe {
        let tag = pg_sys::LOCKTAG {
            locktag_field1: pg_sys::MyDatabaseId.to_u32(),
            locktag_field2: (key >> 32) as u32,
            locktag_field3: key as u32,
            locktag_field4: class,
            locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
            locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
        };
        let mode = match mode {
            Mode::Shared => pg_sys::ShareLock,
            Mode::Exclusive => pg_sys::ExclusiveLock,
        };
        let result = pg_sys::LockAcquire(&tag, mode as i32, hold == Hold::Session, !wait);
        result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
    }
}

/// PostgreSQL's hash of bytes.
pub fn hash(bytes: &[u8], seed: u64) -> u64 {
    // SAFETY: pointer and length belong to one slice.
    unsafe { hash_bytes_extended(bytes.as_ptr(), bytes.len() as i32, seed) }
}
