//! Replaces functions of the C library: random numbers come from the seed, and a disk keeps only what was flushed.
//!
//! Invariant: the code under test does not notice. This program defines `getrandom` (hash tables, Raft ids, election timeouts,
//! the runtime's own choices), `clock_gettime` (for the time of day only; the simulation moves the runtime's paused clock),
//! `fsync`, `fdatasync`, `write` and `pwrite64`. They call the kernel until a simulation begins in the process.

use std::{
    ffi::{c_int, c_long, c_uint, c_void},
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
};

use crate::disk;

/// State of the seeded generator. 0: the kernel answers.
static STATE: AtomicU64 = AtomicU64::new(0);

/// Time of day of the host that runs now, in milliseconds since 1970. 0: the kernel answers.
static TIME_OF_DAY: AtomicI64 = AtomicI64::new(0);

/// Sets the time of day of the host that runs now.
pub fn set_time_of_day(ms: i64) {
    TIME_OF_DAY.store(ms, Ordering::Relaxed);
}

/// Replaces the C library's function.
///
/// # Safety
/// As `clock_gettime(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    let ms = TIME_OF_DAY.load(Ordering::Relaxed);
    if clock != libc::CLOCK_REALTIME || ms == 0 {
        // SAFETY: the caller's promise, passed on.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as c_int };
    }
    // SAFETY: the caller's `time` may be written.
    unsafe { time.write(libc::timespec { tv_sec: ms.div_euclid(1000), tv_nsec: ms.rem_euclid(1000) * 1_000_000 }) };
    0
}

/// From here on the process's random numbers come from the seed.
pub fn seed_randomness(seed: u64) {
    STATE.store(mix(seed) | 1, Ordering::Relaxed);
}

fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Replaces the C library's function.
///
/// # Safety
/// As `getrandom(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize {
    if STATE.load(Ordering::Relaxed) == 0 {
        // SAFETY: the caller's promise, passed on.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as isize };
    }
    for at in 0..length {
        let state = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        // SAFETY: the caller's buffer has `length` bytes.
        unsafe { buffer.cast::<u8>().add(at).write(mix(state) as u8) };
    }
    length as isize
}

fn failed(error: c_int) -> c_int {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Replaces the C library's function: the simulated disk keeps the file as it is now.
#[unsafe(no_mangle)]
pub extern "C" fn fsync(fd: c_int) -> c_int {
    disk::flush(fd).map_or_else(failed, |()| 0)
}

/// Replaces the C library's function.
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(fd: c_int) -> c_int {
    disk::flush(fd).map_or_else(failed, |()| 0)
}

/// Replaces the C library's function.
///
/// # Safety
/// As `write(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, count: usize) -> isize {
    let count = match disk::room(fd, count) {
        Ok(count) => count,
        Err(error) => return failed(error) as isize,
    };
    // SAFETY: the caller's promise, for no more bytes.
    unsafe { libc::syscall(libc::SYS_write, fd as c_long, buffer, count) as isize }
}

/// Replaces the C library's function.
///
/// # Safety
/// As `pwrite(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(fd: c_int, buffer: *const c_void, count: usize, offset: i64) -> isize {
    let count = match disk::room(fd, count) {
        Ok(count) => count,
        Err(error) => return failed(error) as isize,
    };
    // SAFETY: the caller's promise, for no more bytes.
    unsafe { libc::syscall(libc::SYS_pwrite64, fd as c_long, buffer, count, offset) as isize }
}
