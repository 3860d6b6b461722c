//! Whether a replica answers lookups, and why not: for probes, status, metrics and the log.

use parking_lot::Mutex;

use crate::raft::fault::Fault;

/// The readiness of a replica through all its incarnations, as it was last checked.
pub struct Readiness {
    inner: Mutex<Inner>,
}

struct Inner {
    not_ready: Option<String>,
    /// The fault for which the replica joins anew, until it has its role again.
    fault: Option<Fault>,
    /// How often the replica joined anew because of a fault.
    resets: u32,
}

impl Default for Readiness {
    fn default() -> Self {
        let not_ready = Some("it has just started".to_owned());
        Self { inner: Mutex::new(Inner { not_ready, fault: None, resets: 0 }) }
    }
}

impl Readiness {
    /// The reason why the replica does not answer lookups; `None` if it does.
    pub fn why_not(&self) -> Option<String> {
        self.inner.lock().not_ready.clone()
    }

    /// The fault for which the replica joins anew, or joined and has not its role again yet.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.inner.lock().fault.clone()
    }

    /// How often the replica joined anew because of a fault, since the process started.
    pub fn resets(&self) -> u32 {
        self.inner.lock().resets
    }

    /// The replica joins anew, because of a fault or because its cluster is gone.
    pub(crate) fn note_reset(&self, fault: Option<Fault>) {
        let mut inner = self.inner.lock();
        let gone = || "its cluster is gone: it joins or founds another one".to_owned();
        inner.not_ready = Some(fault.as_ref().map_or_else(gone, Fault::to_string));
        if let Some(fault) = fault {
            inner.resets += 1;
            inner.fault = Some(fault);
        }
    }

    /// Notes the result of a check, and logs a change.
    pub(crate) fn note(&self, not_ready: Option<String>) {
        let mut inner = self.inner.lock();
        if not_ready == inner.not_ready {
            return;
        }
        match &not_ready {
            Some(reason) => tracing::info!(reason, "this replica does not answer lookups"),
            None => tracing::info!("this replica answers lookups"),
        }
        inner.not_ready = not_ready;
    }

    /// The replica is ready and has its role: the fault is over.
    pub(crate) fn forget_fault(&self) {
        self.inner.lock().fault = None;
    }

    /// Notes a fault of the running incarnation.
    pub(crate) fn note_fault(&self, fault: Fault) {
        self.note(Some(fault.to_string()));
        self.inner.lock().fault = Some(fault);
    }
}
