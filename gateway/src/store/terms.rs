//! Under what paths are resolved (P8): the index group's epoch, each node's history, and each node's clock, all read
//! a moment ago. From these a change of what was resolved gets its lease.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::{join_all, try_join_all};
use mantle_index_client::{Basis, proto};
use mantle_types::{Epoch, Error, ErrorCode, Lease, Lineage, Lsn, Result, limits::LEASE_S};
use tokio::time::timeout;
use tokio_postgres::{
    Row,
    types::{PgLsn, Type},
};

use super::{
    Store,
    database::pause,
    nodes::{Node, Nodes},
    rows,
    shards::Address,
    sql,
};

/// A node that does not answer by then keeps the terms it had: nothing can be changed on it now.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

/// The other half of a change is waited for so long; then the client repeats. Citus' recovery gets there in seconds
/// (`citus.recover_2pc_interval`) once the node does.
const SETTLED_WITHIN: Duration = Duration::from_secs(5);

/// A partition that was resolved, and for how long changes may rely on that.
#[derive(Clone, Copy, Debug)]
pub struct Leased {
    /// The partition.
    pub pid: i64,
    /// The lease, on the partition's node.
    pub lease: Lease,
}

#[derive(Clone, Copy, Debug)]
struct NodeTerms {
    lineage: Lineage,
    /// Its number, if its change stream feeds the index.
    source: Option<u32>,
    /// The node's clock, in microseconds since 1970, at or before `read`.
    clock_us: i64,
    read: Instant,
}

/// What a node says of an index group.
struct GroupTerms {
    epoch: Epoch,
    changes: i64,
    lease: Duration,
}

/// What was read.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What lookups have to be answered under: the index group's epoch, and the histories of the nodes that feed it.
    pub basis: Basis,
    /// How often assignments of the group were changed.
    pub changes: i64,
    /// How long all this counts, from before it was read.
    pub lease: Duration,
    nodes: HashMap<Address, NodeTerms>,
}

impl Terms {
    fn new(group: GroupTerms, nodes: HashMap<Address, NodeTerms>) -> Self {
        let GroupTerms { epoch, changes, lease } = group;
        let lineages = nodes.values().filter_map(|node| {
            let Lineage { system_identifier, timeline } = node.lineage;
            node.source.map(|source| proto::Lineage { source, system_identifier, timeline })
        });
        let basis = Basis { epoch, lineages: lineages.collect() };
        Self { basis, changes, lease, nodes }
    }
}

/// When something was resolved, and under which terms. Taken before the path is asked for.
#[derive(Clone, Debug)]
pub struct Moment {
    terms: Arc<Terms>,
    at: Instant,
}

impl Moment {
    /// Now, under these terms.
    pub fn now(terms: Arc<Terms>) -> Self {
        Self { terms, at: Instant::now() }
    }

    /// What to resolve under.
    pub fn basis(&self) -> &Basis {
        &self.terms.basis
    }

    fn lease(&self, address: &Address) -> Lease {
        let epoch = self.terms.basis.epoch;
        let Some(node) = self.terms.nodes.get(address) else {
            // A node that the terms do not know yet refuses this, and they are read again.
            return Lease { deadline_us: 0, lineage: Lineage { system_identifier: 0, timeline: 0 }, epoch };
        };
        // The node's clock was at least here when the path was asked for, so the lease may end early, never late.
        let resolved_us = node.clock_us + self.at.saturating_duration_since(node.read).as_micros() as i64;
        Lease { deadline_us: resolved_us + LEASE_S as i64 * 1_000_000, lineage: node.lineage, epoch }
    }
}

impl Store {
    /// Reads the terms of all nodes; those that do not answer keep their `old` ones.
    pub async fn terms(&self, group: u32, old: Option<&Terms>) -> Result<Terms> {
        let main = self.nodes.main_node();
        let (of_group, of_main) = read(main, group).await?;
        let mut nodes = HashMap::from([(main.address.clone(), of_main)]);
        let others = self.nodes.others().await?;
        let answers = join_all(others.iter().map(|node| timeout(NODE_TIMEOUT, read(node, group)))).await;
        for (node, answer) in others.iter().zip(answers) {
            let known = || old.and_then(|old| old.nodes.get(&node.address).copied());
            let answer = answer.ok().and_then(Result::ok);
            if answer.is_none() {
                self.nodes.doubt();
            }
            let terms = answer.map(|(_, terms)| terms).or_else(known);
            nodes.extend(terms.map(|terms| (node.address.clone(), terms)));
        }
        Ok(Terms::new(of_group, nodes))
    }

    /// What is committed by now on each node that feeds the index: its number there, and its position. Asked for after an
    /// answer, the positions cover the change that the answer is of, wherever its parts are.
    pub async fn flushed(&self) -> Result<Vec<(u32, Lsn)>> {
        settle(&self.nodes).await?;
        let others = self.nodes.others().await?;
        let all = std::iter::once(self.nodes.main_node()).chain(&others);
        let positions = try_join_all(all.map(async |node| {
            let row = super::one(&sql::FLUSHED, node.database.query(&sql::FLUSHED, &[], false).await?)?;
            Ok::<_, Error>((source_of(&row)?, Lsn(rows::get::<PgLsn>(&row, "lsn")?.into())))
        }));
        Ok(positions.await?.into_iter().filter_map(|(source, lsn)| Some((source?, lsn))).collect())
    }

    /// A partition that was resolved at a moment, for changes.
    pub fn leased(&self, moment: &Moment, pid: i64) -> Leased {
        Leased { pid, lease: self.nodes.at_address_of(pid, |address| moment.lease(address)) }
    }
}

/// Waits for the other halves of changes on two nodes: when one has committed, and the answer been given, the other one may
/// still be prepared, if its node has failed meanwhile. Whoever reads there sees what was before.
pub async fn settle(nodes: &Nodes) -> Result<()> {
    let others = nodes.others().await?;
    if others.is_empty() {
        return Ok(());
    }
    let started = Instant::now();
    let all = std::iter::once(nodes.main_node()).chain(&others);
    let halves = try_join_all(all.map(async |node| {
        let row = super::one(&sql::PREPARED, node.database.query(&sql::PREPARED, &[], false).await?)?;
        let gids: Vec<String> = rows::get(&row, "gids")?;
        for attempt in 0.. {
            if gids.is_empty() || !are_prepared(node, &gids).await? {
                break;
            }
            if started.elapsed() > SETTLED_WITHIN {
                return Err(Error::new(
                    ErrorCode::AwaitTimeout,
                    format!("{} has not finished its part yet", node.address.host),
                ));
            }
            pause(attempt).await;
        }
        Ok(())
    }));
    halves.await.map(drop)
}

async fn read(node: &Node, group: u32) -> Result<(GroupTerms, NodeTerms)> {
    let rows = node.database.query(&sql::TERMS, &[(&(group as i32), Type::INT4)], false).await?;
    let row: Row = super::one(&sql::TERMS, rows)?;
    let lineage = rows::get::<&str>(&row, "lineage")?.parse()?;
    let source = source_of(&row)?;
    let terms = NodeTerms { lineage, source, clock_us: rows::get(&row, "clock_us")?, read: Instant::now() };
    let of_group = GroupTerms {
        epoch: Epoch(rows::get::<i64>(&row, "epoch")? as u64),
        changes: rows::get(&row, "changes")?,
        lease: Duration::from_millis(rows::get::<i64>(&row, "lease_ms")? as u64),
    };
    Ok((of_group, terms))
}

async fn are_prepared(node: &Node, gids: &[String]) -> Result<bool> {
    let rows = node.database.query(&sql::ARE_PREPARED, &[(&gids, Type::TEXT_ARRAY)], false).await?;
    rows::get(&super::one(&sql::ARE_PREPARED, rows)?, "are_left")
}

fn source_of(row: &Row) -> Result<Option<u32>> {
    Ok(rows::get_opt::<i32>(row, "source")?.map(|source| source as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_when_the_path_was_asked_for() {
        let address = Address { host: "h".into(), port: 1 };
        let lineage = Lineage { system_identifier: 7, timeline: 2 };
        let read = Instant::now();
        let nodes = HashMap::from([(address.clone(), NodeTerms { lineage, source: Some(0), clock_us: 1_000, read })]);
        let group = GroupTerms { epoch: Epoch(3), changes: 0, lease: Duration::from_secs(60) };
        let terms = Arc::new(Terms::new(group, nodes));
        let moment = Moment { terms, at: read + Duration::from_secs(5) };
        let deadline_us = 1_000 + (5 + LEASE_S as i64) * 1_000_000;
        assert_eq!(moment.lease(&address), Lease { deadline_us, lineage, epoch: Epoch(3) });
        let unknown = Address { port: 2, ..address };
        assert_eq!(moment.lease(&unknown).deadline_us, 0);
    }
}
