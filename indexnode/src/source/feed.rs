//! The PostgreSQL nodes that feed the group, each with a session and a connection to its walsender.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use mantle_types::Lsn;

use super::{
    continuity::{Reason, Server, Slot, check_history, check_slot, end_of},
    upstream::{Database, Session, Statements, Walsender},
};
use crate::{
    index::command::{Source, SourceId},
    node::Node,
};

/// One node, connected.
pub struct Feed {
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

/// Connects to every node of the group.
pub async fn connect(node: &Node, database: &Database, control: &dyn Statements, slot_name: &str) -> Result<Vec<Feed>> {
    let sources = control.sources().await?;
    ensure!(!sources.is_empty(), "mantle.index_sources names no node");
    let is_only = matches!(sources[..], [(_, None)]);
    let feeds = sources.into_iter().map(|(id, address)| async move {
        let database = address.map_or_else(|| database.clone(), |(host, port)| database.at(&host, port));
        let known = node.state.read().index.source(id);
        let start = known.as_ref().map_or(Lsn::INVALID, end_of);
        let session = database.connect().await?;
        let mut walsender = database.walsender(slot_name, start).await?;
        let server = walsender.server().await?;
        // A name or address that a failover moves may lead to two servers.
        ensure!(session.lineage().await? == server.lineage, "two connections lead to different servers");
        let slot = session.slot(slot_name).await?;
        Ok(Feed { id, is_only, session, walsender, server, slot, known })
    });
    try_join_all(feeds).await
}

/// Can the streams go on from where the index is?
pub fn check(node: &Node, feeds: &[Feed]) -> Result<(), Reason> {
    let known: Vec<SourceId> = node.state.read().index.sources().map(|(id, _)| id).collect();
    // What a diverged source says weighs more than anything else.
    for feed in feeds {
        feed.known.as_ref().map_or(Ok(()), |known| check_history(known, &feed.server))?;
    }
    if !feeds.iter().map(|feed| feed.id).eq(known.iter().copied()) {
        return Err(Reason::behind("other PostgreSQL nodes feed the group than before"));
    }
    for feed in feeds {
        feed.known.as_ref().map_or(Ok(()), |known| check_slot(end_of(known), feed.slot.as_ref()))?;
    }
    Ok(())
}
