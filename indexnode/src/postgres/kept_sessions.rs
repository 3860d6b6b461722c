//! Sessions that are kept for a moment, because the same statement is likely to be needed again soon.
//!
//! Opening a session costs PostgreSQL a process and both sides a TLS handshake: a third of a second on a busy machine.
//! For that time a failed rename would keep its lock, because its abort record is written first, and every rename that
//! meets the lock would wait.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use anyhow::Result;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::upstream::{Database, Session};

/// More sessions at once are opened, but not kept.
const KEPT_MAX: usize = 4;
/// PostgreSQL's connections are few, and a replica that led has no use for one.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// If the server of a kept session has failed, the only sign is that it does not answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Sessions that nobody uses at the moment.
#[derive(Default)]
pub(crate) struct KeptSessions(Arc<Mutex<Vec<Session>>>);

impl KeptSessions {
    /// The answer of a statement in a session of its own: a kept one, or a new one if none is kept or the kept one fails. So the
    /// statement may be run twice, and the second must answer as the first.
    pub(crate) async fn ask<T, F>(&self, database: &Database, statement: impl Fn(Session) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let kept = self.0.lock().pop();
        if let Some(session) = kept
            && let Ok(Ok(answer)) = timeout(ANSWER_MAX, statement(session.clone())).await
        {
            self.keep(session);
            return Ok(answer);
        }
        let session = database.connect().await?;
        let answer = statement(session.clone()).await?;
        self.keep(session);
        Ok(answer)
    }

    fn keep(&self, session: Session) {
        let mut kept = self.0.lock();
        if kept.len() >= KEPT_MAX {
            return;
        }
        let (sessions, this) = (Arc::downgrade(&self.0), Arc::downgrade(&session));
        kept.push(session);
        tokio::spawn(async move {
            sleep(KEPT_FOR).await;
            if let Some(sessions) = sessions.upgrade() {
                sessions.lock().retain(|kept| !Weak::ptr_eq(&Arc::downgrade(kept), &this));
            }
        });
    }
}
