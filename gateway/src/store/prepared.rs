//! Changes on two PostgreSQL nodes commit in two phases. After a failure one part may have committed while the other is
//! still only prepared, and a read there sees the state before the change. Waiting for the prepared parts closes that
//! window (P26, P42).

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use mantle_types::{Error, ErrorCode, Lsn, Result};
use tokio_postgres::types::{PgLsn, Type};

use super::{
    Store,
    database::pause,
    nodes::{Node, Nodes},
    one,
    resolution::source_of,
    rows, sql,
};

/// How long to wait for prepared parts; then the client repeats. Citus' recovery takes seconds
/// (`citus.recover_2pc_interval`) once it reaches the node.
const PREPARED_WAIT_MAX: Duration = Duration::from_secs(5);

/// Waits until no part is left that was prepared when this began.
pub async fn wait_for_prepared(nodes: &Nodes) -> Result<()> {
    let others = nodes.others().await?;
    if others.is_empty() {
        return Ok(());
    }
    let started = Instant::now();
    let all = std::iter::once(nodes.main_node()).chain(&others);
    try_join_all(all.map(|node| wait_on_node(node, started))).await.map(drop)
}

async fn wait_on_node(node: &Node, started: Instant) -> Result<()> {
    let row = one(&sql::PREPARED, node.database.query(&sql::PREPARED, &[], false).await?)?;
    let gids: Vec<String> = rows::get(&row, "gids")?;
    for attempt in 0.. {
        if gids.is_empty() || !are_prepared(node, &gids).await? {
            break;
        }
        if started.elapsed() > PREPARED_WAIT_MAX {
            let detail = format!("{} has not finished its part yet", node.address.host);
            return Err(Error::new(ErrorCode::AwaitTimeout, detail));
        }
        pause(attempt).await;
    }
    Ok(())
}

async fn are_prepared(node: &Node, gids: &[String]) -> Result<bool> {
    let rows = node.database.query(&sql::ARE_PREPARED, &[(&gids, Type::TEXT_ARRAY)], false).await?;
    rows::get(&one(&sql::ARE_PREPARED, rows)?, "are_left")
}

impl Store {
    /// The WAL position up to which each source has committed by now. Read after an answer, the positions cover all
    /// parts of the change that was answered.
    pub async fn flushed(&self) -> Result<Vec<(u32, Lsn)>> {
        wait_for_prepared(&self.nodes).await?;
        let others = self.nodes.others().await?;
        let all = std::iter::once(self.nodes.main_node()).chain(&others);
        let positions = try_join_all(all.map(async |node| {
            let row = one(&sql::FLUSHED, node.database.query(&sql::FLUSHED, &[], false).await?)?;
            Ok::<_, Error>((source_of(&row)?, Lsn(rows::get::<PgLsn>(&row, "lsn")?.into())))
        }));
        Ok(positions.await?.into_iter().filter_map(|(source, lsn)| Some((source?, lsn))).collect())
    }
}
