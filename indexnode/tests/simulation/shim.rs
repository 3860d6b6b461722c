//! What the kernel answers: randomness from the seed, and a disk that keeps only what was flushed.
//!
//! Invariant: the code under test is not told. `getrandom` (hash tables, Raft ids, election timeouts, the runtime's own
//! choices), `clock_gettime` (for the time of day; the runtime's clock stands still and is moved by the simulation), `fsync`,
//! `fdatasync`, `write` and `pwrite64` are defined here and so take the place of the C library's in this test's program. Nothing changes until a simulation begins in the process.

use std::{
    ffi::{c_int, c_long, c_uint, c_void},
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
};

use crate::disk;

/// State of the seeded generator; 0: the kernel answers.
static STATE: AtomicU64 = AtomicU64::new(0);

/// The time of day on the host whose turn it is, in milliseconds since 1970; 0: the kernel answers.
static TIME_OF_DAY: AtomicI64 = AtomicI64::new(0);

/// What the host whose turn it is takes for the time of day.
pub fn set_time_of_day(ms: i64) {
    TIME_OF_DAY.store(ms, Ordering::Relaxed);
}

/// Stands for the C library's function of that name.
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

/// From here on the process's randomness comes from the seed.
pub fn seed_randomness(seed: u64) {
    STATE.store(mix(seed) | 1, Ordering::Relaxed);
}

fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Stands for the C library's function of that name.
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

/// Stands for the C library's function of that name: the simulated disk keeps the file as it is now.
#[unsafe(no_mangle)]
pub extern "C" fn fsync(fd: c_int) -> c_int {
    disk::flush(fd).map_or_else(failed, |()| 0)
}

/// Stands for the C library's function of that name.
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(fd: c_int) -> c_int {
    disk::flush(fd).map_or_else(failed, |()| 0)
}

/// Stands for the C library's function of that name.
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

/// Stands for the C library's function of that name.
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
