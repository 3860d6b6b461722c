//! The failpoints: every protection that the simulation, or the proof of `make chaos`, can switch off, one at a time, to show
//! that it would notice.
//!
//! They exist in builds with the feature `failpoints` only; in any other [`is_hit`] is `false` at compile time.

/// A protection that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Failpoint {
    /// A leader gives its commit index as a read index without asking whether its term has committed anything yet.
    ReadBeforeFirstEntry = 1,
    /// A replica that once led answers other replicas' requests for a read index without confirming that it still does.
    ReadIndexOfOldLeader,
    /// A lookup is answered without waiting until its read index is applied.
    LookupBeforeApply,
    /// A snapshot's position is published before the index is the snapshot's.
    PublishBeforeInstall,
    /// A restarted replica votes while a lease that it granted before may still hold.
    VoteWithinLease,
    /// The Raft log reports entries as flushed that are not.
    AcknowledgeBeforeFlush,
    /// Transactions that were applied are applied again when they come again.
    ApplyTwice,
    /// An expired lock is given back without an abort record.
    UnlockWithoutAbort,
    /// Changes are applied that the synchronous standby has not flushed.
    ApplyBeyondStandby,
    /// A copy is served that shows what the synchronous standby has not flushed.
    CopyBeyondStandby,
    /// After a failover the stream goes on, whatever the index has of the timeline that PostgreSQL left.
    FollowAnyTimeline,
    /// Cached prefixes outlive the rename or removal of a directory on their way.
    ForgetModified,
    /// A record replaces a newer one of its directory: whatever comes last wins.
    ApplyAnyVersion,
    /// A directory may be prepared to be renamed to below itself.
    PrepareBelowItself,
    /// A rename may be prepared over what another one has locked.
    PrepareThroughLocks,
}

/// Is this protection left out?
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub const fn is_hit(_: Failpoint) -> bool {
    false
}

#[cfg(feature = "failpoints")]
pub use switched::{is_hit, switch_on};

#[cfg(feature = "failpoints")]
mod switched {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::Failpoint;

    impl Failpoint {
        /// All of them.
        pub const ALL: [Self; 15] = [
            Self::ReadBeforeFirstEntry,
            Self::ReadIndexOfOldLeader,
            Self::LookupBeforeApply,
            Self::PublishBeforeInstall,
            Self::VoteWithinLease,
            Self::AcknowledgeBeforeFlush,
            Self::ApplyTwice,
            Self::UnlockWithoutAbort,
            Self::ApplyBeyondStandby,
            Self::CopyBeyondStandby,
            Self::FollowAnyTimeline,
            Self::ForgetModified,
            Self::ApplyAnyVersion,
            Self::PrepareBelowItself,
            Self::PrepareThroughLocks,
        ];

        /// The one of that name.
        pub fn named(name: &str) -> Option<Self> {
            Self::ALL.into_iter().find(|failpoint| format!("{failpoint:?}") == name)
        }
    }

    static ON: AtomicU8 = AtomicU8::new(0);

    /// Is this protection left out?
    pub fn is_hit(failpoint: Failpoint) -> bool {
        ON.load(Ordering::Relaxed) == failpoint as u8
    }

    /// Leaves one protection out, in the whole process and for good.
    pub fn switch_on(failpoint: Failpoint) {
        ON.store(failpoint as u8, Ordering::Relaxed);
    }
}
