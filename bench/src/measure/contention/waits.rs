//! Samples what sessions wait for, in pg_stat_activity every 20 ms.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;

use crate::{report::short, sql::Session};

const LOOK: Duration = Duration::from_millis(20);
/// The report leaves out waits of fewer sessions than this on average.
const NAMED_MIN: f64 = 0.1;
/// The report names at most this many kinds of waits.
const NAMED: usize = 3;

/// Sessions counted by wait event (`Lock:tuple`) or `running`, over all looks.
#[derive(Clone, Default)]
pub struct Waits {
    looks: u64,
    sessions: BTreeMap<String, i64>,
}

impl Waits {
    /// Sessions on average whose wait event starts with `kind`; with an empty one all active sessions.
    pub fn of(&self, kind: &str) -> f64 {
        let all: i64 = self.sessions.iter().filter(|(name, _)| name.starts_with(kind)).map(|(_, count)| count).sum();
        all as f64 / self.looks.max(1) as f64
    }

    /// The most frequent wait events, each with its sessions on average.
    pub fn most(&self) -> String {
        let mut kinds: Vec<_> = self.sessions.keys().map(|name| (self.of(name), name)).collect();
        kinds.retain(|(mean, _)| *mean >= NAMED_MIN);
        kinds.sort_by(|a, b| b.0.total_cmp(&a.0));
        let named: Vec<_> = kinds.iter().take(NAMED).map(|(mean, name)| format!("{name} {}", short(*mean))).collect();
        named.join(", ")
    }

    /// Samples the sessions of `role` until `work` has ended; answers the work's result.
    pub async fn during<T>(
        &mut self,
        watcher: &Session,
        role: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let watch = async {
            loop {
                tokio::time::sleep(LOOK).await;
                self.looks += 1;
                for (kind, count) in watcher.waits(role).await? {
                    *self.sessions.entry(kind).or_default() += count;
                }
            }
        };
        tokio::select! {
            done = work => done,
            failed = watch => failed,
        }
    }
}
