//! `mantle members`: shows an index group's members, voters and leader, and changes them.

use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{HumanCount, HumanDuration};
use mantle_index_client::proto::{self, MemberChange};
use mantle_types::GroupId;
use serde::Serialize;

use crate::{IndexOptions, exit::Exit, output::Output, table};

/// Bound on one change, which commits twice: a joint membership, then the new one.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    index: IndexOptions,
    /// The index group
    #[arg(long, default_value_t = 1, global = true)]
    group: u32,
    #[command(subcommand)]
    action: Option<Action>,
}

/// MEMBER is a replica's address, or its node id where several have one address.
#[derive(clap::Subcommand)]
enum Action {
    /// Show the members (the default)
    List,
    /// Make a learner vote
    Promote { member: String },
    /// Make a voter a learner: it still answers lookups
    Demote { member: String },
    /// Remove a replica from the group for good; stop it first, or it joins again
    Remove { member: String },
    /// Make a voter the leader
    Lead { member: String },
}

/// The answer of every `mantle members --json`: the members, after a change if one was asked for.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Answer {
    /// The index group.
    group: u32,
    /// Voters first.
    members: Vec<Member>,
}

/// A replica of the group, as its leader knows it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Member {
    /// Address of the replica, for the others and for gateways.
    address: String,
    /// Raft's id of the replica.
    node_id: u64,
    /// `leader`, `voter` or `learner`.
    role: &'static str,
    /// Number of log entries that the member is not known to have.
    lag_entries: u64,
    /// Whether the leader has not heard from it for longer than any election timeout.
    down: bool,
    /// Milliseconds since the leader heard from it; null if the leader has not heard from it yet, and for the leader itself.
    heard_ms: Option<u64>,
}

impl From<proto::Member> for Member {
    fn from(member: proto::Member) -> Self {
        let role = match (member.leader, member.voter) {
            (true, _) => "leader",
            (false, true) => "voter",
            (false, false) => "learner",
        };
        let proto::Member { address, node_id, lag_entries, down, heard_ms, .. } = member;
        Self { address, node_id, role, lag_entries, down, heard_ms }
    }
}

impl Member {
    fn state(&self) -> String {
        match self.heard_ms {
            _ if !self.down => "answers".to_owned(),
            Some(heard) => format!("down, heard {} ago", HumanDuration(Duration::from_millis(heard))),
            None => "down, not heard since this leader leads".to_owned(),
        }
    }
}

pub async fn run(options: Options, output: Output) -> Result<Exit> {
    let index = options.index.client()?.of_group(GroupId(options.group));
    let change = match options.action.unwrap_or(Action::List) {
        Action::List => None,
        Action::Promote { member } => Some((member, MemberChange::Promote)),
        Action::Demote { member } => Some((member, MemberChange::Demote)),
        Action::Remove { member } => Some((member, MemberChange::Remove)),
        Action::Lead { member } => Some((member, MemberChange::Lead)),
    };
    if let Some((member, change)) = change {
        index.change_member(&member, change, CHANGE_TIMEOUT).await.with_context(|| format!("`{member}`"))?;
    }
    let members: Vec<Member> = index.members().await?.into_iter().map(Member::from).collect();
    let mut rows = vec![table::headings(["member", "node", "role", "lag", "state"])];
    for member in &members {
        let (node, lag) = (member.node_id.to_string(), HumanCount(member.lag_entries).to_string());
        rows.push(vec![member.address.clone(), node, member.role.to_owned(), lag, member.state()]);
    }
    output.text(table::table(&rows));
    output.answer(&Answer { group: options.group, members });
    Ok(Exit::Fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_is_down_says_since_when() {
        let state = |down, heard_ms| Member::from(proto::Member { down, heard_ms, ..Default::default() }).state();
        assert_eq!(state(false, None), "answers");
        assert_eq!(state(false, Some(3)), "answers");
        assert_eq!(state(true, Some(72_000)), "down, heard 72 seconds ago");
        assert_eq!(state(true, None), "down, not heard since this leader leads");
    }
}
