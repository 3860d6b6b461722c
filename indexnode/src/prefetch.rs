//! Begins to load a line of the processor's cache.
//!
//! What looks many things up at once says first where it is going to read, and reads afterwards: so the processor waits for
//! all memory together, and not for each in turn. It does not wait at all here, other than at a read whose result is not used
//! yet: those fill its window of instructions.

/// Begins to load the line that `at` begins in.
#[inline]
pub(crate) fn prefetch<T>(at: &T) {
    #[cfg(target_arch = "x86_64")]
    safe_arch::prefetch_t0(at);
    // Elsewhere a read does it, at the price above.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
