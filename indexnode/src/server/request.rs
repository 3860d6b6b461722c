//! What the services share about requests and answers: the time limit, outcomes, and lineages in the wire's type.

use std::time::Duration;

use mantle_index_client::{outcome_of_result, proto};
use mantle_types::{Error, ErrorCode, GroupId, Lineage, Result};

use crate::{groups::Groups, index::command::SourceId};

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);
const TIMEOUT_MAX: Duration = Duration::from_secs(30);

pub fn time_limit(timeout_ms: u32) -> Duration {
    match timeout_ms {
        0 => TIMEOUT_DEFAULT,
        ms => Duration::from_millis(u64::from(ms)).min(TIMEOUT_MAX),
    }
}

pub fn no_index() -> Error {
    Error::new(ErrorCode::IndexUnavailable, "this replica has no index yet")
}

pub fn lineage(source: SourceId, lineage: &Lineage) -> proto::Lineage {
    let Lineage { system_identifier, timeline } = *lineage;
    proto::Lineage { source: source.0, system_identifier, timeline }
}

/// The outcome of a leader's call; `not_leader` has the leader's address.
pub fn outcome_of<T>(groups: &Groups, group: GroupId, result: &Result<T>) -> proto::Outcome {
    let mut outcome = outcome_of_result(result);
    if result.as_ref().is_err_and(|e| e.code() == ErrorCode::NotLeader)
        && let Some((_, address)) = groups.node(group).ok().and_then(|node| node.leader())
    {
        outcome.leader_address = address;
    }
    outcome
}
