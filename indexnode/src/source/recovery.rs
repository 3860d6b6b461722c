//! Recovers a leadership in doubt (P48): the log may lack entries that lookups have shown, or in which renames were prepared.
//!
//! PostgreSQL has everything that was acknowledged. So the epoch is raised, which ends all prepared renames, and lookups wait
//! until the change streams have brought the index to where PostgreSQL is now. The streams send it again: a slot is confirmed
//! only up to what the index has, or the index is rebuilt.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::join_all;
use tokio::time::sleep;

use super::{connections::SourceConnections, rebuild::epoch_for_rebuild};
use crate::{
    index::command::Command,
    node::{Leadership, Node},
    postgres::upstream::{IndexGroup, Statements},
    waits,
};

const WAIT: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(100);

/// Recovers the leadership if it is in doubt. The group's epoch is then the one that was raised.
pub async fn recover(
    node: &Node,
    leadership: &Leadership,
    control: &dyn Statements,
    group: &mut IndexGroup,
    connections: &SourceConnections,
) -> Result<()> {
    if !node.is_in_doubt(leadership) {
        return Ok(());
    }
    tracing::info!("this leader's log may lack committed entries: lookups wait for what PostgreSQL has");
    ensure!(connections.away.is_empty(), "the recovery waits for a PostgreSQL node that is away");
    let epoch = epoch_for_rebuild(node, control, group).await?;
    let mut positions = Vec::new();
    for connection in &connections.connected {
        positions.push((connection.id, connection.session.flushed().await?));
    }
    node.propose_as(leadership, &Command::Recover { epoch, positions }).await?;
    node.doubt.note_recovered(leadership.term);
    group.epoch = epoch;
    Ok(())
}

/// Makes the streams propose the positions that lookups wait for, also when no directory changes. Never returns.
pub async fn reach(node: &Node) {
    loop {
        let behind = node.state.read().index.behind();
        let waits = behind.into_iter().map(|(source, lsn)| waits::position(node, source, lsn, WAIT));
        join_all(waits).await;
        sleep(RETRY).await;
    }
}
