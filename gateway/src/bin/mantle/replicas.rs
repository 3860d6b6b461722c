//! Waits until every replica of the index has applied PostgreSQL's WAL up to a position.

use std::time::{Duration, Instant};

use anyhow::Result;
use mantle_index_client::{IndexClient, Status};
use mantle_types::{ErrorCode, Lsn};
use tokio_postgres::{Client, types::PgLsn};

use crate::{
    connect,
    database_url::DatabaseUrl,
    exit::{Exit, failure},
    sql,
};

const AWAIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two looks at the replicas.
const LOOK_PERIOD: Duration = Duration::from_millis(10);
/// The wait fails after this time without progress.
const STALL_MAX: Duration = Duration::from_secs(60);

/// Takes the newest values of a quantity; true if it has not grown for [`STALL_MAX`].
fn stall_detector() -> impl FnMut(u64) -> bool {
    let (mut best, mut since) = (0, Instant::now());
    move |value| {
        if value > best {
            (best, since) = (value, Instant::now());
        }
        since.elapsed() > STALL_MAX
    }
}

/// Connections to the index's sources.
pub struct Nodes(Vec<Client>);

impl Nodes {
    pub async fn connect(url: &DatabaseUrl) -> Result<Self> {
        let main = connect::connect_first(url).await?;
        let mut nodes = Vec::new();
        for row in main.query(sql::NODES, &[]).await? {
            nodes.push(connect::connect(&url.at(row.get(0), row.get::<_, i32>(1) as u16)?).await?);
        }
        if nodes.is_empty() {
            nodes.push(main);
        }
        Ok(Self(nodes))
    }

    /// The flush position of each source, with the source's number.
    pub async fn flushed(&self) -> Result<Vec<(u32, Lsn)>> {
        let mut positions = Vec::with_capacity(self.0.len());
        for node in &self.0 {
            let row = node.query_one(sql::FLUSHED, &[]).await?;
            let source = row.get::<_, Option<i32>>(0);
            positions.extend(source.map(|source| (source as u32, Lsn(row.get::<_, PgLsn>(1).into()))));
        }
        Ok(positions)
    }
}

/// Waits until the leader has applied these positions.
pub async fn wait_leader(index: &IndexClient, positions: &[(u32, Lsn)], say: &impl Fn(String)) -> Result<()> {
    for (source, lsn) in positions {
        let mut is_stalled = stall_detector();
        while let Err(error) = index.await_lsn(*source, *lsn, AWAIT_TIMEOUT).await {
            let sources = answering(index).await.into_iter().flat_map(|(_, status)| status.sources);
            let of_source = sources.filter(|s| s.lineage.is_some_and(|l| l.source == *source));
            let position = of_source.map(|source| source.applied_lsn).max().unwrap_or(0);
            say(format!("applied {} of {lsn}", Lsn(position)));
            if is_stalled(position) {
                let applied = Lsn(position);
                let text =
                    format!("the rows are in PostgreSQL, but the index has applied only {applied} of {lsn}: {error}");
                return Err(failure(Exit::Away, text));
            }
            if error.code() != ErrorCode::AwaitTimeout {
                tokio::time::sleep(LOOK_PERIOD * 10).await;
            }
        }
    }
    Ok(())
}

/// Waits until the leader has applied these positions, and every replica has caught up with the leader. `say` receives
/// the progress. Answers the replicas' status at the end.
pub async fn wait_applied(
    index: &IndexClient,
    positions: &[(u32, Lsn)],
    say: impl Fn(String),
) -> Result<Vec<(String, Status)>> {
    wait_leader(index, positions, &say).await?;
    let mut target = 0;
    let mut is_stalled = stall_detector();
    loop {
        let answers = index.status().await;
        let answering = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
        if target == 0 {
            // The leader's applied index covers the positions.
            target = answering().find(|status| status.role == "leader").map_or(0, |leader| leader.applied_index);
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
        if is_stalled(answering().map(|status| status.applied_index).sum()) {
            let text =
                format!("the rows are in PostgreSQL and the index has them, but these did not catch up: {waiting}");
            return Err(failure(Exit::Away, text));
        }
        say(format!("waiting for {waiting}"));
        tokio::time::sleep(LOOK_PERIOD).await;
    }
}

/// The status of the replicas that answer, by address.
pub async fn answering(index: &IndexClient) -> Vec<(String, Status)> {
    index.status().await.into_iter().filter_map(|(address, answer)| Some((address, answer.ok()?))).collect()
}
