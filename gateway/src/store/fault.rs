//! Classifies failed statements by SQLSTATE, never by message text. Citus raises some errors without a specific
//! SQLSTATE; for these the source file that raised them decides.

use mantle_types::{Error, ErrorCode};
use tokio_postgres::error::{DbError, SqlState};

const CITUS_INTERMEDIATE_RESULT_NOT_FOUND: &str = "CIINF";
/// PostgreSQL's `transaction_timeout`, from 17 on.
const TRANSACTION_TIMEOUT: &str = "25P04";
/// In these files Citus talks to other nodes, and commits there.
const CITUS_CONNECTIONS: [&str; 6] = [
    "remote_commands.c",
    "adaptive_executor.c",
    "connection_management.c",
    "intermediate_results.c",
    "placement_connection.c",
    "remote_transaction.c",
];
/// In these files Citus finds, before any commit, that a shard or its node has moved: missing metadata, a local shard
/// that is remote now, a plan that does not fit. In the last one PostgreSQL opens a shard's table.
const SHARDS_THAT_LEFT: [&str; 8] = [
    "metadata_cache.c",
    "metadata_utility.c",
    "shardinterval_utils.c",
    "multi_executor.c",
    "local_executor.c",
    "multi_router_planner.c",
    "multi_physical_planner.c",
    "relation.c",
];

/// A failure, by how the caller may react.
#[derive(Debug)]
pub enum Fault {
    /// One of Mantle's SQLSTATEs: an answer.
    Mantle(ErrorCode),
    /// The session refused a mutation that a new one may accept. It was told to end. Nothing changed.
    StaleSession(ErrorCode),
    /// A conflict (serialization, deadlock, lock timeout) rolled the transaction back. A retry may succeed.
    Conflict(tokio_postgres::Error),
    /// The connection broke after the statement may have been sent.
    Lost(tokio_postgres::Error),
    /// Nothing was sent, or the server refused for a reason that passes. Nothing changed.
    Unavailable(String),
    /// Any other error: a fault of the service.
    Unexpected(tokio_postgres::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mantle(ErrorCode),
    Conflict,
    Lost,
    Unavailable,
    Unexpected,
}

/// The class of a SQLSTATE and the source file that raised it.
fn kind_of(state: &SqlState, file: &str) -> Kind {
    if let Some(code) = ErrorCode::from_sqlstate(state.code()) {
        return Kind::Mantle(code);
    }
    let is_in = |files: &[&str]| files.iter().any(|name| file.rsplit('/').next() == Some(name));
    match *state {
        // On Citus a shard that has just moved causes the last two.
        SqlState::T_R_SERIALIZATION_FAILURE
        | SqlState::T_R_DEADLOCK_DETECTED
        | SqlState::LOCK_NOT_AVAILABLE
        | SqlState::UNDEFINED_TABLE
        | SqlState::UNIQUE_VIOLATION => Kind::Conflict,
        SqlState::UNDEFINED_FUNCTION => Kind::Mantle(ErrorCode::NotImplemented),
        SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN => Kind::Lost,
        // A connection between nodes broke, or the node's postmaster ended. Citus has no SQLSTATE for these. It
        // forwards the other node's, or XX000 when there is none. A session without its postmaster reports XX000 when
        // it waits for other nodes.
        SqlState::INTERNAL_ERROR if is_in(&CITUS_CONNECTIONS) => Kind::Lost,
        // It ends the session.
        _ if state.code() == TRANSACTION_TIMEOUT => Kind::Lost,
        // A standby raises the last one.
        SqlState::CANNOT_CONNECT_NOW
        | SqlState::TOO_MANY_CONNECTIONS
        | SqlState::READ_ONLY_SQL_TRANSACTION
        | SqlState::QUERY_CANCELED
        | SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => Kind::Unavailable,
        // An intermediate result was lost with a shard that moved, or with a connection.
        _ if state.code() == CITUS_INTERMEDIATE_RESULT_NOT_FOUND => Kind::Conflict,
        _ if state.code().starts_with("08") => Kind::Lost,
        _ if state.code().starts_with("53") => Kind::Unavailable,
        // No healthy placement, or no shard for a value.
        SqlState::INTERNAL_ERROR | SqlState::INVALID_PARAMETER_VALUE | SqlState::DATA_EXCEPTION
            if is_in(&SHARDS_THAT_LEFT) =>
        {
            Kind::Conflict
        }
        // The transaction changed a shard over one connection and would now need another connection to it.
        SqlState::ACTIVE_SQL_TRANSACTION if is_in(&CITUS_CONNECTIONS) => Kind::Conflict,
        _ => Kind::Unexpected,
    }
}

impl Fault {
    pub fn of(error: tokio_postgres::Error) -> Self {
        let Some(state) = error.code() else {
            // Without a SQLSTATE the connection broke, or a value did not convert (a bug of the gateway).
            let wire = error.is_closed() || std::error::Error::source(&error).is_some_and(|s| s.is::<std::io::Error>());
            return if wire { Self::Lost(error) } else { Self::Unexpected(error) };
        };
        let file = error.as_db_error().and_then(DbError::file).unwrap_or_default();
        match kind_of(state, file) {
            Kind::Mantle(code) => {
                if code == ErrorCode::NotImplemented {
                    tracing::debug!(cause = %error, "the database lacks a function");
                }
                Self::Mantle(code)
            }
            Kind::Conflict => Self::Conflict(error),
            Kind::Lost => Self::Lost(error),
            Kind::Unavailable => Self::Unavailable(describe(&error)),
            Kind::Unexpected => Self::Unexpected(error),
        }
    }

    /// Whether a change surely has not happened.
    pub fn is_undone(&self) -> bool {
        match self {
            Self::Mantle(code) => *code != ErrorCode::UnknownOutcome,
            Self::StaleSession(_) | Self::Conflict(_) | Self::Unavailable(_) => true,
            Self::Lost(_) | Self::Unexpected(_) => false,
        }
    }

    /// The client's error. The cause goes to the log.
    pub fn into_error(self, statement: &'static str, mutates: bool) -> Error {
        use ErrorCode::{InvalidId, WeakCommit, WrongIsolation};
        match &self {
            Self::Mantle(code @ (InvalidId | WrongIsolation | WeakCommit)) => {
                tracing::error!(statement, %code, "the database refused a call for a fault of the service");
            }
            Self::Mantle(_) => {}
            Self::StaleSession(code) => {
                tracing::warn!(statement, %code, "the database refuses changes in old sessions")
            }
            Self::Conflict(cause) if cause.code() == Some(&SqlState::INTERNAL_ERROR) => {
                tracing::warn!(statement, cause = describe(cause), "a shard is not found where it is said to be");
            }
            Self::Conflict(cause) => tracing::debug!(statement, cause = describe(cause), "conflicts did not end"),
            Self::Lost(cause) if mutates => {
                tracing::warn!(statement, cause = describe(cause), "the connection broke; the outcome is unknown");
            }
            Self::Lost(cause) => tracing::warn!(statement, cause = describe(cause), "the connection broke"),
            Self::Unavailable(cause) => tracing::warn!(statement, %cause, "the database is unavailable"),
            Self::Unexpected(cause) => {
                tracing::error!(statement, cause = describe(cause), "unexpected database error");
            }
        }
        match self {
            Self::Mantle(code) => code.into(),
            Self::Lost(_) if mutates => ErrorCode::UnknownOutcome.into(),
            Self::StaleSession(_) | Self::Conflict(_) | Self::Lost(_) | Self::Unavailable(_) => {
                ErrorCode::DatabaseUnavailable.into()
            }
            Self::Unexpected(_) => ErrorCode::Internal.into(),
        }
    }
}

/// An error in full for the log: the server's report, or the chain of causes on this side.
pub fn describe(error: &tokio_postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        let place = said.where_().unwrap_or_default();
        return format!("{} {} {place}", said.code().code(), said.message()).trim_end().to_owned();
    }
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(state: &str, file: &str) -> Kind {
        kind_of(&SqlState::from_code(state), file)
    }

    #[test]
    fn errors_of_a_moving_shard_are_conflicts() {
        for (state, file) in [
            ("42P01", "parse_relation.c"),          // the shard's table is gone
            ("CIINF", "intermediate_results.c"),    // a result that was sent there is gone, too
            ("23505", "nbtinsert.c"),               // a row that was looked for where the shard was
            ("40001", "citus_custom_scan.c"),       // a shard that was split
            ("XX000", "executor/multi_executor.c"), // cannot execute a distributed query from a query on a shard
            ("XX000", "local_executor.c"),          // the shard has no placement; local execution cannot be switched
            ("XX000", "metadata_cache.c"), // could not find valid entry for shard (placement); no node in the group
            ("XX000", "metadata_utility.c"),
            ("XX000", "multi_physical_planner.c"), // no active placements were found for shard
            ("22023", "metadata_utility.c"),       // could not find any healthy placement
            ("22000", "shardinterval_utils.c"),    // cannot find shard interval
            ("25001", "placement_connection.c"),   // modifications were made over another connection
            ("XX000", "relation.c"),               // could not open relation with OID
        ] {
            assert_eq!(kind(state, file), Kind::Conflict, "{state} {file}");
        }
    }

    #[test]
    fn a_commit_that_another_node_may_have_is_unknown() {
        // Could not commit on at least one active node; a connection broke; a postmaster ended.
        for file in
            ["connection/placement_connection.c", "remote_transaction.c", "remote_commands.c", "adaptive_executor.c"]
        {
            assert_eq!(kind("XX000", file), Kind::Lost, "{file}");
        }
        assert_eq!((kind("08006", "transmit.c"), kind("57P01", "postgres.c")), (Kind::Lost, Kind::Lost));
    }

    #[test]
    fn other_errors_are_faults_of_the_service() {
        for (state, file) in [
            ("XX000", "fmgr.c"),
            ("XX000", "my_relation.c"),
            ("XX000", ""),
            ("22023", "guc.c"),
            ("22000", "varlena.c"),
            ("25001", "xact.c"),
            ("42501", "aclchk.c"),
        ] {
            assert_eq!(kind(state, file), Kind::Unexpected, "{state} {file}");
        }
        assert_eq!(kind("MT010", "pl_exec.c"), Kind::Mantle(ErrorCode::NotFound));
        assert_eq!(kind("55000", "xlogfuncs.c"), Kind::Unavailable);
    }

    #[test]
    fn only_a_refusal_of_new_sessions_too_is_final() {
        let code = |fault: Fault| fault.into_error("mkdir", true).code();
        assert_eq!(code(Fault::StaleSession(ErrorCode::WrongIsolation)), ErrorCode::DatabaseUnavailable);
        assert_eq!(code(Fault::Mantle(ErrorCode::WrongIsolation)), ErrorCode::WrongIsolation);
    }
}
