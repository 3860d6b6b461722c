//! `Resolve`: a stream of batches of lookups, each answered under one read index.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::{StreamExt, stream::BoxStream};
use mantle_index_client::{
    QueryRef, Row, outcome_of_result,
    proto::{self, ResolveRequest, ResolveResponse},
    push_answer, queries, wire_code,
};
use mantle_types::{Caller, Error, ErrorCode, GroupId, Result};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Status, Streaming};

use super::{
    metrics,
    request::{lineage, no_index, time_limit},
};
use crate::{
    failpoints::{self, Failpoint},
    groups::Groups,
    index::{Index, Path, Resolution, command::SourceId},
    lookup::PathQuery,
    node::Node,
};

const QUERIES_MAX: usize = 4096;
/// The index's read guard is released after this many lookups, so that apply gets in.
const QUERIES_PER_GUARD: usize = 64;
/// Time between two requests for a read index while there is no leader.
const LEADER_RETRY: Duration = Duration::from_millis(10);

/// Answers a stream of batches, in order.
pub fn answers(
    groups: Arc<Groups>,
    batches: Streaming<ResolveRequest>,
) -> BoxStream<'static, Result<ResolveResponse, Status>> {
    let answer = move |batch: Result<ResolveRequest, Status>| {
        let groups = groups.clone();
        async move { Ok(answer(&groups, &batch?).await) }
    };
    batches.then(answer).boxed()
}

async fn answer(groups: &Groups, request: &ResolveRequest) -> ResolveResponse {
    let started = Instant::now();
    let mut response = ResolveResponse { number: request.number, ..ResolveResponse::default() };
    let group = GroupId(request.group);
    let result = async { resolve(&*groups.node(group)?, request, &mut response).await }.await;
    if result.is_err() {
        response = ResolveResponse { number: request.number, epoch: response.epoch, ..ResolveResponse::default() };
    }
    response.outcome = Some(outcome_of_result(&result));
    metrics::count_lookups(group, request.path_bytes.len(), started.elapsed(), result.is_ok());
    response
}

/// Waits until this replica has applied everything that was committed when the call began.
pub(super) async fn catch_up(node: &Node, deadline: Instant) -> Result<()> {
    let late = || Error::new(ErrorCode::IndexUnavailable, "this replica cannot reach the leader, or is far behind it");
    let caught_up = async {
        loop {
            match node.reads.read_index().await {
                Ok(_) if failpoints::is_hit(Failpoint::LookupBeforeApply) => return,
                Ok(log_index) => return node.state.wait_applied(log_index).await,
                Err(e) => tracing::debug!(error = %e, "no read index"),
            }
            sleep(LEADER_RETRY).await;
        }
    };
    timeout_at(deadline, caught_up).await.map_err(|_| late())
}

/// Waits until this replica has also applied everything that PostgreSQL showed when the call began. `false`: it may lack some.
async fn settle(node: &Node, deadline: Instant) -> Result<bool> {
    if node.raft.is_leader() {
        let (caught_up, settled) = tokio::join!(catch_up(node, deadline), node.settled.log_index(&node.state));
        // What this replica answers as the leader's entry, it has applied.
        return caught_up.map(|()| settled.is_ok());
    }
    let settled = async {
        let read_index = node.reads.settled_index().await?;
        node.state.wait_applied(read_index.log_index).await;
        Ok::<_, Error>(read_index.is_settled)
    };
    match timeout_at(deadline, settled).await {
        Ok(Ok(is_settled)) => Ok(is_settled),
        _ => catch_up(node, deadline).await.map(|()| false),
    }
}

async fn resolve(node: &Node, request: &ResolveRequest, response: &mut ResolveResponse) -> Result<()> {
    let deadline = Instant::now() + time_limit(request.timeout_ms);
    if request.path_bytes.len() > QUERIES_MAX {
        return Err(Error::new(ErrorCode::BatchTooLarge, format!("at most {QUERIES_MAX} queries are allowed")));
    }
    let callers: Vec<Caller> = request.callers.iter().cloned().map(Caller::from).collect();
    let queries: Vec<_> = queries(request, &callers)?.into_iter().map(PathQuery::from).collect();
    if !node.state.is_serving() {
        return Err(no_index());
    }
    if request.settles {
        response.settled = settle(node, deadline).await?;
    } else {
        catch_up(node, deadline).await?;
    }
    node.reads.counters.paths.fetch_add(queries.len() as u64, Ordering::Relaxed);
    if request.reads_rows {
        response.rows.reserve(queries.len() * size_of::<Row>());
    }
    for queries in queries.chunks(QUERIES_PER_GUARD) {
        let found = {
            let state = node.state.read();
            let epoch = state.index.epoch();
            response.epoch = epoch.0;
            if request.epoch != 0 && request.epoch != epoch.0 {
                return Err(Error::new(ErrorCode::StaleEpoch, format!("the index has epoch {epoch}")));
            }
            check_lineages(&state.index, &request.lineages)?;
            if !state.index.is_serving() {
                return Err(no_index());
            }
            let mut lookups = node.state.cache.begin(&state.index);
            lookups.resolve_all(queries, |mut resolution| {
                if state.index.refuses_lookups(resolution.ns) {
                    resolution.outcome = Err(ErrorCode::NotServed);
                }
                push_answer(response, &row(&resolution), request.reads_rows);
            });
            lookups.end()
        };
        node.state.cache.fill(found);
    }
    Ok(())
}

/// Checks that gateway and index use the same PostgreSQL nodes, by system and timeline. Nodes that the index does not read yet
/// are not compared: nothing in the index is from them.
fn check_lineages(index: &Index, lineages: &[proto::Lineage]) -> Result<()> {
    for given in lineages {
        let known = index.source(SourceId(given.source)).map(|source| lineage(SourceId(given.source), &source.lineage));
        if known.is_some_and(|known| known != *given) {
            let why = format!("the index reads from {known:?}, not from {given:?}");
            return Err(Error::new(ErrorCode::StaleEpoch, why));
        }
    }
    Ok(())
}

impl<'a> From<QueryRef<'a>> for PathQuery<'a> {
    fn from(query: QueryRef<'a>) -> Self {
        Self { namespace: query.namespace, path: Path(query.path), caller: query.caller }
    }
}

fn row(r: &Resolution) -> Row {
    Row {
        namespace: r.ns.0.into(),
        id: r.id.0.into(),
        parent_id: r.parent_id.0.into(),
        version: r.version.into(),
        depth: (r.depth as u32).into(),
        owner: r.permission.owner.into(),
        group: r.permission.group.into(),
        mode: r.permission.mode.into(),
        code: r.outcome.err().map_or(0, |code| wire_code(code) as u16).into(),
        crossed_lock: r.crossed_lock.into(),
    }
}
