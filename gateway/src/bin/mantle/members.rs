//! `mantle members`: shows an index group's members, voters and leader, and changes them.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use indicatif::HumanCount;
use mantle_index_client::proto::MemberChange;
use mantle_types::GroupId;

use crate::{IndexOptions, table};

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

pub async fn run(options: Options) -> Result<ExitCode> {
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
    let mut rows = vec![table::headings(["member", "node", "role", "lag"])];
    for member in index.members().await? {
        let role = match (member.leader, member.voter) {
            (true, _) => "leader",
            (false, true) => "voter",
            (false, false) => "learner",
        };
        let lag = HumanCount(member.lag_entries).to_string();
        rows.push(vec![member.address, member.node_id.to_string(), role.to_owned(), lag]);
    }
    crate::print(&table::table(&rows));
    Ok(ExitCode::SUCCESS)
}
