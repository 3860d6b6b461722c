//! Failpoints: the protections that the simulation and `make chaos-proof` can switch off, one at a time, to prove that
//! the tests notice it. Also lets the simulation run replicas of an older release beside this one ([`newest_rule`]).
//!
//! Only builds with the feature `failpoints` have them. In other builds [`is_hit`] is `false` at compile time.

#[cfg(feature = "failpoints")]
use std::{
    cell::Cell,
    sync::atomic::{AtomicU8, Ordering},
};

macro_rules! failpoints {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// A protection to leave out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Failpoint {
            $($(#[$doc])+ $name,)+
        }

        #[cfg(feature = "failpoints")]
        impl Failpoint {
            /// The failpoint of that name.
            pub fn named(name: &str) -> Option<Self> {
                match name {
                    $(stringify!($name) => Some(Self::$name),)+
                    _ => None,
                }
            }
        }
    };
}

failpoints! {
    /// A leader answers its commit index as a read index although its term has not committed an entry yet.
    ReadBeforeFirstEntry,
    /// A former leader answers other replicas' requests for a read index without confirming that it still leads.
    ReadIndexOfOldLeader,
    /// A lookup is answered before its read index is applied.
    LookupBeforeApply,
    /// The position of a snapshot is published before its index is installed.
    PublishBeforeInstall,
    /// A restarted replica votes while a lease that it granted before the restart may still hold.
    VoteWithinLease,
    /// The Raft log reports entries as flushed before they are.
    AcknowledgeBeforeFlush,
    /// A transaction that arrives again is applied again.
    ApplyTwice,
    /// An expired lock is released without an abort record.
    UnlockWithoutAbort,
    /// Changes are applied before the synchronous standby has flushed them.
    ApplyBeyondStandby,
    /// An initial copy is served although the synchronous standby has not flushed all that it shows.
    CopyBeyondStandby,
    /// After a failover the stream continues even if the index has more of the old timeline than PostgreSQL kept.
    FollowAnyTimeline,
    /// Cached prefixes survive the rename or removal of a directory on their path.
    ForgetModified,
    /// A record replaces a newer one of its directory: the last to arrive wins.
    ApplyAnyVersion,
    /// A prepare accepts a rename of a directory to a place below itself.
    PrepareBelowItself,
    /// A prepare accepts a path that another rename has locked.
    PrepareThroughLocks,
    /// A leader that was elected by a restarted voter trusts that nothing committed is missing (P48).
    TrustEveryVoter,
    /// A replica whose folder went back goes on under its id (P48).
    KeepLostLog,
    /// A term from another replica is accepted, whatever its number.
    AnyTerm,
    /// The answers to appends name a term that no election reaches, as the holder of a stolen certificate could.
    AnswerHighestTerm,
    /// A prepare is decided by the newest rule that a replica knows, whatever rule its entry names.
    DecideByOwnRule,
    /// A replica answers although its state differs from the leader's (P49).
    ServeDifferingState,
    /// A miss is called final without a sample of PostgreSQL's position (P58).
    SettleWithoutSample,
}

/// The newest rule of the release that this replica plays, if it is another than this one.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub const fn newest_rule() -> Option<u32> {
    None
}

#[cfg(feature = "failpoints")]
thread_local! {
    static RULE: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The newest rule of the release that this replica plays, if it is another than this one.
#[cfg(feature = "failpoints")]
pub fn newest_rule() -> Option<u32> {
    RULE.get()
}

/// Makes the replica that runs on this thread one of an older release, until the next call.
#[cfg(feature = "failpoints")]
pub fn set_newest_rule(rule: u32) {
    RULE.set(Some(rule));
}

/// Tells whether this protection is left out.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub const fn is_hit(_: Failpoint) -> bool {
    false
}

/// The protection to leave out; by default none.
#[cfg(feature = "failpoints")]
static ON: AtomicU8 = AtomicU8::new(u8::MAX);

/// Tells whether this protection is left out.
#[cfg(feature = "failpoints")]
pub fn is_hit(failpoint: Failpoint) -> bool {
    ON.load(Ordering::Relaxed) == failpoint as u8
}

/// Leaves one protection out in the whole process, until it ends.
#[cfg(feature = "failpoints")]
pub fn switch_on(failpoint: Failpoint) {
    ON.store(failpoint as u8, Ordering::Relaxed);
}
