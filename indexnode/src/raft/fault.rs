//! What makes an incarnation of a replica unfit to go on: its log or its state is not what the group relies on (P48, P49). It
//! then answers nothing more, and joins the group anew.

use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The folder lacks what the replica has promised: it went back.
    LogLost,
    /// The log has committed entries that are not the leader's.
    LogDiffers,
    /// The state at an entry is not the leader's.
    StateDiffers,
}

/// A fault, with the reason in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    pub why: String,
}

impl Fault {
    pub fn new(kind: FaultKind, why: impl Into<String>) -> Self {
        Self { kind, why: why.into() }
    }

    /// True if the replica may neither vote nor acknowledge entries: what it would promise contradicts its promises, or the log
    /// of the leader.
    pub fn forbids_promises(&self) -> bool {
        self.kind != FaultKind::StateDiffers
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            FaultKind::LogLost => write!(f, "this replica's folder went back: {}", self.why),
            FaultKind::LogDiffers | FaultKind::StateDiffers => {
                write!(f, "this replica differs from the leader: {}", self.why)
            }
        }
    }
}

impl std::error::Error for Fault {}

/// The fault of an incarnation, once it has one: the first counts.
pub struct FaultCell(watch::Sender<Option<Fault>>);

impl Default for FaultCell {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl FaultCell {
    /// Records a fault. Returns the one that counts.
    pub fn raise(&self, fault: Fault) -> Fault {
        self.0.send_if_modified(|held| {
            let is_first = held.is_none();
            if is_first {
                tracing::error!(reason = fault.why, "{fault}; it stops answering, and joins the group anew");
                *held = Some(fault.clone());
            }
            is_first
        });
        self.get().unwrap_or(fault)
    }

    pub fn get(&self) -> Option<Fault> {
        self.0.borrow().clone()
    }

    /// Returns once there is a fault.
    pub async fn raised(&self) -> Fault {
        let mut held = self.0.subscribe();
        // The sender lives as long as `self`.
        let found = held.wait_for(Option::is_some).await.ok().and_then(|fault| fault.clone());
        found.expect("waited for it")
    }
}
