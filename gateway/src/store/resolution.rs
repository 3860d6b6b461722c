//! The context that paths are resolved in (P8): the index group's epoch, and each node's history and clock, read a
//! moment ago. It gives each change of a resolved directory its lease.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use mantle_index_client::{LookupContext, proto};
use mantle_types::{Epoch, GroupId, Lease, Lineage, PartitionId, Permission, Result, limits::LEASE_S};
use tokio::time::timeout;
use tokio_postgres::{Row, types::Type};

use super::{Store, nodes::Node, rows, shards::Address, sql};

/// A node that does not answer in this time keeps its old context: nothing can be changed on it now.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

/// A partition that was resolved, and how long changes may rely on that.
#[derive(Clone, Copy, Debug)]
pub struct LeasedPartition {
    pub pid: PartitionId,
    /// The lease, on the partition's node.
    pub lease: Lease,
    /// The directory's permission, if the resolution found it: changes of its entries are checked against it (P56).
    pub permission: Option<Permission>,
}

impl LeasedPartition {
    /// Ends the lease so long after the resolution, if that is sooner than otherwise. To be called once: a second call would end it
    /// too soon.
    pub fn for_at_most(mut self, duration: Duration) -> Self {
        let unused = Duration::from_secs(LEASE_S).saturating_sub(duration);
        self.lease.deadline_us -= unused.as_micros() as i64;
        self
    }
}

#[derive(Clone, Copy, Debug)]
struct NodeContext {
    lineage: Lineage,
    /// The node's number, if the index reads its change stream.
    source: Option<u32>,
    /// The node's clock, in microseconds since 1970, at or before `read`.
    clock_us: i64,
    read: Instant,
}

struct GroupContext {
    epoch: Epoch,
    changes: i64,
    lease: Duration,
}

#[derive(Clone, Debug)]
pub struct ResolutionContext {
    /// Sent with a lookup: the index group's epoch, and the histories of its sources.
    pub lookup: LookupContext,
    /// How often assignments of namespaces to the group were changed.
    pub changes: i64,
    /// How long the context holds, from before it was read.
    pub lease: Duration,
    nodes: HashMap<Address, NodeContext>,
}

impl ResolutionContext {
    fn new(group: GroupContext, nodes: HashMap<Address, NodeContext>) -> Self {
        let GroupContext { epoch, changes, lease } = group;
        let lineages = nodes.values().filter_map(|node| {
            let Lineage { system_identifier, timeline } = node.lineage;
            node.source.map(|source| proto::Lineage { source, system_identifier, timeline })
        });
        let lookup = LookupContext { epoch, lineages: lineages.collect() };
        Self { lookup, changes, lease, nodes }
    }
}

/// When a resolution began, and in which context. Taken before the path is looked up.
#[derive(Clone, Debug)]
pub struct ResolutionStart {
    context: Arc<ResolutionContext>,
    at: Instant,
}

impl ResolutionStart {
    pub fn now(context: Arc<ResolutionContext>) -> Self {
        Self { context, at: Instant::now() }
    }

    pub fn lookup_context(&self) -> &LookupContext {
        &self.context.lookup
    }

    fn lease(&self, address: &Address) -> Lease {
        let epoch = self.context.lookup.epoch;
        let Some(node) = self.context.nodes.get(address) else {
            // The node refuses this lease, and the context is read again.
            return Lease { deadline_us: 0, lineage: Lineage { system_identifier: 0, timeline: 0 }, epoch };
        };
        // The node's clock was at least this when the lookup began. So the lease may end early, never late.
        let resolved_us = node.clock_us + self.at.saturating_duration_since(node.read).as_micros() as i64;
        Lease { deadline_us: resolved_us + LEASE_S as i64 * 1_000_000, lineage: node.lineage, epoch }
    }
}

impl Store {
    /// Reads the context from all nodes. Nodes that do not answer keep their part of the `old` one.
    pub async fn resolution_context(
        &self,
        group: GroupId,
        old: Option<&ResolutionContext>,
    ) -> Result<ResolutionContext> {
        let main = &self.nodes.main;
        let (of_group, of_main) = read(main, group).await?;
        let mut nodes = HashMap::from([(main.address.clone(), of_main)]);
        let others = self.nodes.others().await?;
        let answers = join_all(others.iter().map(|node| timeout(NODE_TIMEOUT, read(node, group)))).await;
        for (node, answer) in others.iter().zip(answers) {
            let context = match answer {
                Ok(Ok((_, context))) => Some(context),
                _ => {
                    self.nodes.suspect();
                    old.and_then(|old| old.nodes.get(&node.address).copied())
                }
            };
            nodes.extend(context.map(|context| (node.address.clone(), context)));
        }
        Ok(ResolutionContext::new(of_group, nodes))
    }

    /// A partition that was resolved, with the lease that its resolution gives.
    pub fn lease(&self, start: &ResolutionStart, pid: PartitionId) -> LeasedPartition {
        LeasedPartition { pid, permission: None, lease: self.nodes.at_address_of(pid, |address| start.lease(address)) }
    }
}

async fn read(node: &Node, group: GroupId) -> Result<(GroupContext, NodeContext)> {
    let group = group.as_i32();
    let row = node.database.query_one(&sql::RESOLUTION_CONTEXT, &[(&group, Type::INT4)]).await?;
    let lineage = rows::get::<&str>(&row, "lineage")?.parse()?;
    let source = source_of(&row)?;
    let of_node = NodeContext { lineage, source, clock_us: rows::get(&row, "clock_us")?, read: Instant::now() };
    let of_group = GroupContext {
        epoch: rows::get::<i64>(&row, "epoch")?.into(),
        changes: rows::get(&row, "changes")?,
        lease: Duration::from_millis(rows::get::<i64>(&row, "lease_ms")? as u64),
    };
    Ok((of_group, of_node))
}

/// The node's number as a source; `None` if the index does not read its change stream.
pub fn source_of(row: &Row) -> Result<Option<u32>> {
    Ok(rows::get_opt::<i32>(row, "source")?.map(|source| source as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_the_start_of_the_resolution() {
        let (address, read) = (Address { host: "h".into(), port: 1 }, Instant::now());
        let lineage = Lineage { system_identifier: 7, timeline: 2 };
        let nodes = HashMap::from([(address.clone(), NodeContext { lineage, source: Some(0), clock_us: 1_000, read })]);
        let group = GroupContext { epoch: Epoch(3), changes: 0, lease: Duration::from_secs(60) };
        let context = Arc::new(ResolutionContext::new(group, nodes));
        let start = ResolutionStart { context, at: read + Duration::from_secs(5) };
        let deadline_us = 1_000 + (5 + LEASE_S as i64) * 1_000_000;
        assert_eq!(start.lease(&address), Lease { deadline_us, lineage, epoch: Epoch(3) });
        assert_eq!(start.lease(&Address { port: 2, ..address }).deadline_us, 0);
    }
}
