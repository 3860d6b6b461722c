//! Checks whether a message between replicas comes from a member, and whether its term is possible.
//!
//! Replicas trust Raft messages: whoever may send one can change the index on every replica, or stop the group
//! permanently. So the sender's certificate must be for the host of the member that the message names as its sender.

use mantle_tls::{Connection, Identity, Security, host_of};
use tonic::Status;

use crate::{
    node::Node,
    raft::{NodeId, types::Vote},
};

/// Checks the sender of a message that speaks for the leader or candidate of a vote.
///
/// # Errors
/// `PERMISSION_DENIED`: the certificate is not for the member's host, or the term is too far ahead.
pub fn check(node: &Node, connection: Option<&Connection>, vote: &Vote) -> Result<(), Status> {
    check_host(node, identity(connection), vote.leader_id.node_id)?;
    node.terms.check(vote.leader_id.term).map_err(Status::permission_denied)
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
