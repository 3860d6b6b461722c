//! Waits for prepared parts. Changes on two PostgreSQL nodes commit in two phases; after a failure one part may be only
//! prepared for long, and a read there sees the state before the change (P26, P42).

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use mantle_types::{Error, ErrorCode, Lsn, Result};
use tokio_postgres::types::{PgLsn, Type};

use super::{
    Store,
    database::pause,
    nodes::{Node, Nodes},
    resolution::source_of,
    rows, sql,
};

/// How long to wait for prepared parts; then the client repeats. Citus' recovery takes seconds
/// (`citus.recover_2pc_interval`) once it reaches the node.
const PREPARED_WAIT_MAX: Duration = Duration::from_secs(5);

/// Waits until no part is left that was prepared when this began.
pub async fn wait_for_prepared(nodes: &Nodes) -> Result<()> {
    let nodes = nodes.all().await?;
    if nodes.len() == 1 {
        return Ok(());
    }
    let started = Instant::now();
    try_join_all(nodes.iter().map(|node| wait_on_node(node, started))).await.map(drop)
}

async fn wait_on_node(node: &Node, started: Instant) -> Result<()> {
    let row = node.database.query_one(&sql::PREPARED, &[]).await?;
    let gids: Vec<String> = rows::get(&row, "gids")?;
    let mut attempt = 0;
    while !gids.is_empty() && are_prepared(node, &gids).await? {
        if started.elapsed() > PREPARED_WAIT_MAX {
            let detail = format!("{} has not finished its part yet", node.address.host);
            return Err(Error::new(ErrorCode::AwaitTimeout, detail));
        }
        pause(attempt).await;
        attempt += 1;
    }
    Ok(())
}

async fn are_prepared(node: &Node, gids: &[String]) -> Result<bool> {
    rows::get(&node.database.query_one(&sql::ARE_PREPARED, &[(&gids, Type::TEXT_ARRAY)]).await?, "are_left")
}

impl Store {
    /// The WAL position up to which each source has committed by now. Read after an answer, the positions cover all
    /// parts of the change that was answered.
    pub async fn flushed(&self) -> Result<Vec<(u32, Lsn)>> {
        wait_for_prepared(&self.nodes).await?;
        let nodes = self.nodes.all().await?;
        let positions = try_join_all(nodes.iter().map(async |node| {
            let row = node.database.query_one(&sql::FLUSHED, &[]).await?;
            Ok::<_, Error>((source_of(&row)?, Lsn(rows::get::<PgLsn>(&row, "lsn")?.into())))
        }));
        Ok(positions.await?.into_iter().filter_map(|(source, lsn)| Some((source?, lsn))).collect())
    }
}
