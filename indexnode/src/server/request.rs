//! What the services share about requests and answers: the time limit, a common error, and lineages in the wire's type.

use std::time::Duration;

use mantle_index_client::proto;
use mantle_types::{Error, ErrorCode, Lineage};

use crate::index::command::SourceId;

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
