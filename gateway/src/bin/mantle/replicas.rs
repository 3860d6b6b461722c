//! Waits until every replica of the index has applied what is in PostgreSQL.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use mantle_index_client::{IndexClient, Status};
use mantle_types::{ErrorCode, Lsn};

/// Patience of one `await` at the leader.
const AWAIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two looks at the replicas.
const LOOK_PERIOD: Duration = Duration::from_millis(10);
/// How long nothing may move before the wait is given up.
const STALL_MAX: Duration = Duration::from_secs(60);

/// Notices when a quantity stops growing.
struct Stall {
    best: u64,
    since: Instant,
}

impl Stall {
    fn new() -> Self {
        Self { best: 0, since: Instant::now() }
    }

    /// Takes the newest value; has it stood still for too long?
    fn is_stalled(&mut self, value: u64) -> bool {
        if value > self.best {
            (self.best, self.since) = (value, Instant::now());
        }
        self.since.elapsed() > STALL_MAX
    }
}

/// Waits until the leader has applied `lsn` and every replica what the leader has. `say` is told what is waited for.
/// The replicas' status at the end.
pub async fn wait_applied(index: &IndexClient, lsn: Lsn, say: impl Fn(String)) -> Result<Vec<(String, Status)>> {
    let mut stall = Stall::new();
    while let Err(error) = index.await_lsn(0, lsn, AWAIT_TIMEOUT).await {
        let position = status_of_answering(index).await.iter().map(|(_, status)| status.applied_lsn).max().unwrap_or(0);
        say(format!("applied {} of {lsn}", Lsn(position)));
        if stall.is_stalled(position) {
            bail!("the rows are in PostgreSQL, but the index stands at {} of {lsn}: {error}", Lsn(position));
        }
        if error.code() != ErrorCode::AwaitTimeout {
            tokio::time::sleep(LOOK_PERIOD * 10).await;
        }
    }
    let mut target = 0;
    let mut stall = Stall::new();
    loop {
        let answers = index.status().await;
        let leader =
            answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()).find(|status| status.role == "leader");
        if target == 0 {
            // What the leader has applied now covers `lsn`.
            target = leader.map_or(0, |leader| leader.applied_index);
        }
        let behind: Vec<&str> = answers
            .iter()
            .filter(|(_, answer)| !answer.as_ref().is_ok_and(|status| status.applied_index >= target))
            .map(|(address, _)| address.as_str())
            .collect();
        if target > 0 && behind.is_empty() {
            return Ok(answers.into_iter().filter_map(|(address, answer)| Some((address, answer.ok()?))).collect());
        }
        let waiting = if target == 0 { "a leader".to_owned() } else { behind.join(", ") };
        let sum =
            answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()).map(|status| status.applied_index).sum();
        if stall.is_stalled(sum) {
            bail!("the rows are in PostgreSQL and the index has them, but it waited in vain for {waiting}");
        }
        say(format!("waiting for {waiting}"));
        tokio::time::sleep(LOOK_PERIOD).await;
    }
}

async fn status_of_answering(index: &IndexClient) -> Vec<(String, Status)> {
    index.status().await.into_iter().filter_map(|(address, answer)| Some((address, answer.ok()?))).collect()
}
