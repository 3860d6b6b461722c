//! Finds the leader: tries the last one that answered, then the address that another replica names, then the next replica,
//! until the call's deadline.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use mantle_types::{Error, ErrorCode, Result};
use parking_lot::Mutex;

use crate::{
    convert::check_outcome,
    proto::{self, Outcome},
    replica::{Replica, transport_error},
};

/// Pause after a whole round without a leader; an election takes some hundred milliseconds.
const ROUND_PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct LeaderTracker {
    configured: Vec<Arc<Replica>>,
    current: Mutex<Arc<Replica>>,
}

pub(crate) trait HasOutcome {
    fn outcome(&self) -> Option<&Outcome>;
}

macro_rules! has_outcome {
    ($($response:ident)*) => {
        $(impl HasOutcome for proto::$response {
            fn outcome(&self) -> Option<&Outcome> {
                self.outcome.as_ref()
            }
        })*
    };
}
has_outcome! { PrepareRenameResponse ReleaseRenameResponse AwaitResponse MembersResponse ChangeMemberResponse }

impl LeaderTracker {
    pub(crate) fn new(configured: Vec<Arc<Replica>>) -> Self {
        let current = Mutex::new(configured[0].clone());
        Self { configured, current }
    }

    /// True if the last call has shown this replica as the leader.
    pub(crate) fn is_current(&self, replica: &Replica) -> bool {
        self.current.lock().address == replica.address
    }

    /// Calls the leader. May send a request twice, which is harmless for all of them.
    pub(crate) async fn call<R, F, Fut>(&self, deadline: Instant, send: F) -> Result<R>
    where
        R: HasOutcome,
        F: Fn(Arc<Replica>, Duration) -> Fut,
        Fut: Future<Output = Result<R, tonic::Status>>,
    {
        let mut last = Error::from(ErrorCode::IndexUnavailable);
        let (mut tried, mut without_group) = (0, 0);
        loop {
            let replica = self.current.lock().clone();
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Err(unavailable(&last));
            }
            let Ok(answered) = tokio::time::timeout(remaining, send(replica.clone(), remaining)).await else {
                self.follow(&replica, "");
                return Err(unavailable(&transport_error(&replica.address, "no answer in time")));
            };
            let mut hint = String::new();
            last = match answered {
                Ok(answer) => match check_outcome(answer.outcome()) {
                    Ok(()) => return Ok(answer),
                    Err(e) => {
                        match e.code() {
                            ErrorCode::NotLeader => hint = answer.outcome().map_or(hint, |o| o.leader_address.clone()),
                            ErrorCode::UnknownGroup => without_group += 1,
                            ErrorCode::IndexUnavailable => {}
                            _ => return Err(e),
                        }
                        e
                    }
                },
                Err(status) => transport_error(&replica.address, status.message()),
            };
            self.follow(&replica, &hint);
            tried += 1;
            // Every replica that answered has no replica of the group.
            if without_group == tried && tried >= self.configured.len() {
                return Err(last);
            }
            if tried % (self.configured.len() + 1) == 0 {
                tokio::time::sleep(ROUND_PAUSE.min(remaining)).await;
            }
        }
    }

    /// Switches to the hinted replica, or to the one after `failed`, unless another call has already switched.
    fn follow(&self, failed: &Arc<Replica>, hint: &str) {
        let mut current = self.current.lock();
        if !Arc::ptr_eq(&current, failed) {
            return;
        }
        let hinted = Some(hint).filter(|hint| !hint.is_empty() && *hint != failed.address).and_then(|hint| {
            let configured = self.configured.iter().find(|r| r.address == hint).cloned();
            configured.or_else(|| Replica::connect_lazy(hint, failed.group, failed.tls.clone()).ok().map(Arc::new))
        });
        *current = hinted.unwrap_or_else(|| {
            let at = self.configured.iter().position(|r| Arc::ptr_eq(r, failed));
            self.configured[at.map_or(0, |i| (i + 1) % self.configured.len())].clone()
        });
    }
}

fn unavailable(last: &Error) -> Error {
    Error::new(ErrorCode::IndexUnavailable, format!("no index leader answers ({})", last.detail()))
}
