//! Protections that a test leaves out, to see that the simulation would notice. Of this thread only: the simulation has no others.

use std::cell::Cell;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// Checksums are not seeded with the generation.
    SeedWithoutGeneration,
    /// A header of another generation is taken, and checksums are not seeded with it.
    IgnoreGeneration,
    /// Checksums are not compared.
    IgnoreSums,
    /// A put returns without a flush.
    SkipFlush,
    /// A volume's new size is flushed together with the superblock that says it.
    SkipSizeFlush,
    /// A flush that failed is tried again.
    RetryFlush,
    /// Freed blocks are reused while they are read.
    IgnorePins,
    /// Blocks that are read are free after a lease if no row names them.
    ForgetPins,
    /// The blocks of a put that was dropped are free while its write is still queued.
    FreeWhileWriting,
    /// The caller frees extents before the delete is durable.
    FreeBeforeDurable,
    /// The caller discards a put of which it does not know whether it was committed.
    DiscardInDoubt,
    /// The caller leaves rows out when it leases a segment.
    ForgetRows,
}

thread_local! {
    static MUTATION: Cell<Option<Mutation>> = const { Cell::new(None) };
}

/// Whether this protection is left out.
pub(crate) fn is(mutation: Mutation) -> bool {
    MUTATION.get() == Some(mutation)
}

/// Leaves a protection out while this does its work.
pub(crate) fn with<T>(mutation: Option<Mutation>, work: impl FnOnce() -> T) -> T {
    MUTATION.set(mutation);
    let result = work();
    MUTATION.set(None);
    result
}
