//! Connections to the group's sources: for each PostgreSQL node a session and a connection to its walsender.
//!
//! A source that cannot be reached (during its failover, or while its host is cut off) does not delay the changes of
//! the others: the leader treats it like a source whose stream is late. Only work that needs all sources waits for it:
//! a copy, a comparison, a namespace's move, the purge of remembered removals.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Error, Result, ensure};
use futures::future::join_all;
use mantle_types::Lsn;
use tokio::time::sleep;

use super::continuity::{RebuildReason, check_history, check_slot, end_of};
use crate::{
    index::{
        command::{Source, SourceId},
        last_seen::LastSeen,
    },
    node::Node,
    postgres::upstream::{Database, Server, Session, Slot, Statements, Walsender},
};

/// Unreachable sources are tried this often.
const RETURN_POLL: Duration = Duration::from_millis(500);

pub struct SourceConnection {
    pub id: SourceId,
    /// The node.
    pub database: Database,
    /// True without Citus: there is one source, and its slot exports the snapshot of the initial copy.
    pub is_only: bool,
    pub session: Session,
    /// The connection that will stream.
    pub walsender: Box<dyn Walsender>,
    pub server: Server,
    pub slot: Option<Slot>,
    /// The position of the index in this source.
    pub known: Option<Source>,
    /// What this source's stream brought last.
    pub last_seen: Option<LastSeen>,
    /// The highest commit of which the index has a part.
    pub reached: Lsn,
    /// Where the stream will begin: at what it brought last, or where the slot begins if that is later.
    pub from: Lsn,
}

pub struct SourceConnections {
    /// The connected ones, in the order of their ids.
    pub connected: Vec<SourceConnection>,
    pub away: BTreeSet<SourceId>,
}

impl SourceConnections {
    pub fn ids(&self) -> BTreeSet<SourceId> {
        self.connected.iter().map(|source| source.id).chain(self.away.iter().copied()).collect()
    }
}

type Place = (SourceId, Option<(String, u16)>);

/// Connects to the group's sources. Some may be unreachable if the index is complete and at least one is connected.
pub async fn connect(
    node: &Node,
    database: &Database,
    control: &dyn Statements,
    slot_name: &str,
) -> Result<SourceConnections> {
    let places = control.sources().await?;
    ensure!(!places.is_empty(), "mantle.index_sources names no node");
    let is_complete = {
        let index = &node.state.read().index;
        index.is_built() && !index.is_rebuilding() && places.iter().all(|(id, _)| index.source(*id).is_some())
    };
    let (mut connected, mut away) = (Vec::new(), BTreeSet::new());
    let mut failure: Option<Error> = None;
    let attempts = places.iter().map(|place| connect_one(node, database, place, slot_name));
    for ((id, _), source) in places.iter().zip(join_all(attempts).await) {
        match source.with_context(|| format!("source {}", id.0)) {
            Ok(source) => connected.push(source),
            Err(e) if is_complete => {
                away.insert(*id);
                failure.get_or_insert(e);
            }
            Err(e) => return Err(e),
        }
    }
    if let Some(e) = failure {
        if connected.is_empty() {
            return Err(e);
        }
        tracing::warn!(error = format!("{e:#}"), "a PostgreSQL node is away: the changes of the others go on");
    }
    Ok(SourceConnections { connected, away })
}

async fn connect_one(
    node: &Node,
    database: &Database,
    (id, address): &Place,
    slot_name: &str,
) -> Result<SourceConnection> {
    let is_only = address.is_none();
    let database = address.as_ref().map_or_else(|| database.clone(), |(host, port)| database.at(host, *port));
    let (known, last_seen, reached) = {
        let index = &node.state.read().index;
        (index.source(*id), index.last_seen(*id), index.reached_lsn(*id))
    };
    let session = database.connect().await?;
    let slot = session.slot(slot_name).await?;
    let end = known.as_ref().map_or(Lsn::INVALID, end_of);
    // The server hears of this position first, and the slot must not hear of one that it may not have.
    let confirmed = slot.map_or(Lsn::INVALID, |slot| slot.confirmed);
    let from = last_seen.map_or(end, |last| last.lsn().max(confirmed).min(end));
    let mut walsender = database.walsender(slot_name, from).await?;
    let server = walsender.server().await?;
    // During a failover, or where a copy of the server runs, one name or address may lead to two servers.
    ensure!(session.incarnation().await? == server.incarnation(), "two connections lead to different servers");
    // Fails on a standby, which has neither a flush position of its own nor a stream for us.
    session.flushed().await?;
    let id = *id;
    Ok(SourceConnection { id, database, is_only, session, walsender, server, slot, known, last_seen, reached, from })
}

/// Waits until one of the unreachable sources can be connected to, or is no longer listed.
pub async fn returned(node: &Node, database: &Database, slot_name: &str, away: &BTreeSet<SourceId>) {
    loop {
        sleep(RETURN_POLL).await;
        match is_any_back(node, database, slot_name, away).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(e) => tracing::debug!(error = format!("{e:#}"), "PostgreSQL does not say where its nodes are"),
        }
    }
}

async fn is_any_back(node: &Node, database: &Database, slot_name: &str, away: &BTreeSet<SourceId>) -> Result<bool> {
    let mut places = database.connect().await?.sources().await?;
    places.retain(|(id, _)| away.contains(id));
    if places.is_empty() {
        return Ok(true);
    }
    for place in &places {
        if connect_one(node, database, place, slot_name).await.is_ok() {
            tracing::info!(source = place.0.0, "a PostgreSQL node is back");
            return Ok(true);
        }
    }
    Ok(false)
}

/// Checks that the streams can go on from the position of the index.
pub fn check(node: &Node, sources: &SourceConnections) -> Result<(), RebuildReason> {
    let known: BTreeSet<SourceId> = node.state.read().index.sources().map(|(id, _)| id).collect();
    // Divergence comes first. A partly applied transaction counts: its commit LSN is the position to check.
    for source in &sources.connected {
        let begun = |known: Source| Source { applied: node.state.read().index.reached_lsn(source.id), ..known };
        source.known.map(begun).map_or(Ok(()), |known| check_history(&known, &source.server))?;
    }
    if sources.ids() != known {
        return Err(RebuildReason::behind("the group has other PostgreSQL nodes than before"));
    }
    for source in &sources.connected {
        source.known.as_ref().map_or(Ok(()), |known| check_slot(end_of(known), source.slot.as_ref()))?;
    }
    Ok(())
}
