//! The PostgreSQL nodes that feed the group, each with a session and a connection to its walsender.
//!
//! A node that is away (it fails over, its host is cut off) does not keep the others' changes from the index: what of it was
//! applied stays, and it is as one whose stream is late. Only what needs all of them waits for it: a copy, a comparison, a
//! namespace's move, the forgetting of removed directories.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Error, Result, ensure};
use futures::future::join_all;
use mantle_types::Lsn;
use tokio::time::sleep;

use super::continuity::{Reason, check_history, check_slot, end_of};
use crate::{
    index::command::{Source, SourceId},
    node::Node,
    postgres::upstream::{Database, Server, Session, Slot, Statements, Walsender},
};

/// Nodes that are away are looked for this often.
const RETURN_POLL: Duration = Duration::from_millis(500);

/// One node, connected.
pub struct SourceConnection {
    /// Which source.
    pub id: SourceId,
    /// The node has no other number in the group: there is one, which exports the copy's snapshot.
    pub is_only: bool,
    /// For statements.
    pub session: Session,
    /// For the slot.
    pub walsender: Box<dyn Walsender>,
    /// What the walsender says of its server.
    pub server: Server,
    /// The group's slot there.
    pub slot: Option<Slot>,
    /// How far the index has come in it.
    pub known: Option<Source>,
}

/// All of them.
pub struct SourceConnections {
    /// Those that are connected, in the order of the ids.
    pub connected: Vec<SourceConnection>,
    /// The others.
    pub away: BTreeSet<SourceId>,
}

impl SourceConnections {
    /// Of all, in order.
    pub fn ids(&self) -> BTreeSet<SourceId> {
        self.connected.iter().map(|feed| feed.id).chain(self.away.iter().copied()).collect()
    }
}

type Place = (SourceId, Option<(String, u16)>);

/// Connects to the nodes of the group. One may be away if the index has all that it is fed by, and another is not.
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
    let mut feeds = SourceConnections { connected: Vec::new(), away: BTreeSet::new() };
    let mut failure: Option<Error> = None;
    let attempts = places.iter().map(|place| connect_one(node, database, place, slot_name));
    for ((id, _), feed) in places.iter().zip(join_all(attempts).await) {
        match feed.with_context(|| format!("source {}", id.0)) {
            Ok(feed) => feeds.connected.push(feed),
            Err(e) if is_complete => {
                feeds.away.insert(*id);
                failure.get_or_insert(e);
            }
            Err(e) => return Err(e),
        }
    }
    match failure {
        Some(e) if feeds.connected.is_empty() => return Err(e),
        Some(e) => {
            tracing::warn!(error = format!("{e:#}"), "a PostgreSQL node is away: the changes of the others go on")
        }
        None => {}
    }
    Ok(feeds)
}

async fn connect_one(
    node: &Node,
    database: &Database,
    (id, address): &Place,
    slot_name: &str,
) -> Result<SourceConnection> {
    let is_only = address.is_none();
    let database = address.as_ref().map_or_else(|| database.clone(), |(host, port)| database.at(host, *port));
    let known = node.state.read().index.source(*id);
    let start = known.as_ref().map_or(Lsn::INVALID, end_of);
    let session = database.connect().await?;
    let mut walsender = database.walsender(slot_name, start).await?;
    let server = walsender.server().await?;
    // A name or address that a failover moves may lead to two servers.
    ensure!(session.lineage().await? == server.lineage, "two connections lead to different servers");
    // A standby has no flush position of its own, nor a stream for us.
    session.flushed().await?;
    let slot = session.slot(slot_name).await?;
    Ok(SourceConnection { id: *id, is_only, session, walsender, server, slot, known })
}

/// Waits until PostgreSQL says where its nodes are, and one of those that were away can be connected to there.
pub async fn returned(node: &Node, database: &Database, slot_name: &str, away: &BTreeSet<SourceId>) {
    loop {
        sleep(RETURN_POLL).await;
        match is_more_there(node, database, slot_name, away).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(e) => tracing::debug!(error = format!("{e:#}"), "PostgreSQL does not say where its nodes are"),
        }
    }
}

async fn is_more_there(node: &Node, database: &Database, slot_name: &str, away: &BTreeSet<SourceId>) -> Result<bool> {
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

/// Can the streams go on from where the index is?
pub fn check(node: &Node, feeds: &SourceConnections) -> Result<(), Reason> {
    let known: BTreeSet<SourceId> = node.state.read().index.sources().map(|(id, _)| id).collect();
    // What a diverged source says weighs more than anything else. Of a transaction that is applied in part the index has some.
    for feed in &feeds.connected {
        let begun = |known: Source| Source { applied: node.state.read().index.reached_lsn(feed.id), ..known };
        feed.known.map(begun).map_or(Ok(()), |known| check_history(&known, &feed.server))?;
    }
    if feeds.ids() != known {
        return Err(Reason::behind("other PostgreSQL nodes feed the group than before"));
    }
    for feed in &feeds.connected {
        feed.known.as_ref().map_or(Ok(()), |known| check_slot(end_of(known), feed.slot.as_ref()))?;
    }
    Ok(())
}
