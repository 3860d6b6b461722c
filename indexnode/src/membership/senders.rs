//! Whether a message between replicas comes from a member, and whether its term can be one.
//!
//! A message of Raft is believed: whoever may send one can change the index on every replica, or stop the group for good. So the
//! certificate of its sender has to be for the host of the member in whose name it speaks.

use std::sync::atomic::Ordering;

use mantle_tls::{Connection, Identity, Security, host_of};
use tonic::Status;

use crate::{
    failpoints::{self, Failpoint},
    node::Node,
    raft::{NodeId, types::Vote},
};

/// A term this far ahead is noticed: elections raise it one by one, and few of them fail.
const JUMP_NOTICED: u64 = 100;
/// A term this far ahead is refused: no election can follow the highest number.
const JUMP_MAX: u64 = 1 << 32;

/// Checks the sender of a message that speaks for the leader or candidate of a vote.
///
/// # Errors
/// `PERMISSION_DENIED`: the certificate is not for the member's host, or the term is too far ahead.
pub fn check(node: &Node, connection: Option<&Connection>, vote: &Vote) -> Result<(), Status> {
    check_host(node, identity(connection), vote.leader_id.node_id)?;
    check_term(node, vote.leader_id.term)
}

/// Who sent a request, if the connection has TLS.
pub fn identity(connection: Option<&Connection>) -> Option<&Identity> {
    match connection.map(|connection| &connection.security) {
        Some(Security::Tls(Some(identity))) => Some(identity),
        _ => None,
    }
}

/// The address of a member counts. One that this replica does not know yet, because it is behind, is at a configured address.
fn check_host(node: &Node, identity: Option<&Identity>, sender: NodeId) -> Result<(), Status> {
    let Some(identity) = identity else { return Ok(()) };
    let membership = node.membership();
    let is_covered = match membership.get_node(&sender) {
        Some(member) => covers(identity, &member.addr),
        None => node.config.peers.iter().chain(&node.config.learners).any(|address| covers(identity, address)),
    };
    if is_covered {
        return Ok(());
    }
    Err(Status::permission_denied(format!("the certificate of `{}` is not for a member's host", identity.name())))
}

/// Tells whether a certificate is for the host of an address `host:port`.
pub fn covers(identity: &Identity, address: &str) -> bool {
    identity.covers(host_of(address))
}

fn check_term(node: &Node, term: u64) -> Result<(), Status> {
    let (_, vote) = node.log.last_and_vote();
    let known = vote.map_or(0, |vote| vote.leader_id.term);
    let jump = term.saturating_sub(known);
    if jump > JUMP_NOTICED {
        node.term_jumps.fetch_add(1, Ordering::Relaxed);
        tracing::error!(term, known, "a message has a term far ahead of this replica's");
    }
    if jump > JUMP_MAX && !failpoints::is_hit(Failpoint::AnyTerm) {
        return Err(Status::permission_denied(format!("term {term} is too far ahead of {known} to be one")));
    }
    Ok(())
}
