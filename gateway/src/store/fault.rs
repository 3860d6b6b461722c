//! What a failed statement means: the SQLSTATE decides, never the text of a message; where Citus has none, the source file.

use mantle_types::{Error, ErrorCode};
use tokio_postgres::error::{DbError, SqlState};

const CITUS_INTERMEDIATE_RESULT_NOT_FOUND: &str = "CIINF";
const CITUS_CONNECTIONS: [&str; 4] =
    ["remote_commands.c", "adaptive_executor.c", "connection_management.c", "intermediate_results.c"];

/// A failure, by what may be done about it.
#[derive(Debug)]
pub enum Fault {
    /// One of Mantle's own SQLSTATEs: the answer.
    Mantle(ErrorCode),
    /// The transaction was rolled back by a conflict (serialization, deadlock, lock timeout): the same again may succeed.
    Conflict(tokio_postgres::Error),
    /// The connection broke after the statement may have been sent.
    Lost(tokio_postgres::Error),
    /// Nothing was sent, or the server refused for a passing reason; nothing changed.
    Unavailable(String),
    /// Anything else: a fault of the service.
    Unexpected(tokio_postgres::Error),
}

impl Fault {
    /// Classifies an error of a statement.
    pub fn of(error: tokio_postgres::Error) -> Self {
        let Some(state) = error.code().cloned() else {
            // No SQLSTATE: the wire broke, or a value did not convert (a fault of ours).
            let wire = error.is_closed() || std::error::Error::source(&error).is_some_and(|s| s.is::<std::io::Error>());
            return if wire { Self::Lost(error) } else { Self::Unexpected(error) };
        };
        if let Some(code) = ErrorCode::from_sqlstate(state.code()) {
            return Self::Mantle(code);
        }
        match state {
            // The last two: on Citus, of a shard that has just moved.
            SqlState::T_R_SERIALIZATION_FAILURE
            | SqlState::T_R_DEADLOCK_DETECTED
            | SqlState::LOCK_NOT_AVAILABLE
            | SqlState::UNDEFINED_TABLE
            | SqlState::UNIQUE_VIOLATION => Self::Conflict(error),
            SqlState::UNDEFINED_FUNCTION => {
                tracing::debug!(cause = %error, "the database lacks a function");
                Self::Mantle(ErrorCode::NotImplemented)
            }
            SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN => Self::Lost(error),
            SqlState::INTERNAL_ERROR if is_of_other_node(&error) => Self::Lost(error),
            // The last of these: a standby, asked for what only a primary has.
            SqlState::CANNOT_CONNECT_NOW
            | SqlState::TOO_MANY_CONNECTIONS
            | SqlState::READ_ONLY_SQL_TRANSACTION
            | SqlState::QUERY_CANCELED
            | SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => Self::Unavailable(told(&error)),
            // What one node had sent another to read went with a shard that moved, or with a connection.
            _ if state.code() == CITUS_INTERMEDIATE_RESULT_NOT_FOUND => Self::Conflict(error),
            _ if state.code().starts_with("08") => Self::Lost(error),
            _ if state.code().starts_with("53") => Self::Unavailable(told(&error)),
            _ => Self::Unexpected(error),
        }
    }

    /// What the client is told; the cause goes to the log.
    pub fn into_error(self, statement: &'static str, mutates: bool) -> Error {
        match self {
            Self::Mantle(code) => {
                if matches!(code, ErrorCode::InvalidId | ErrorCode::WrongIsolation | ErrorCode::WeakCommit) {
                    tracing::error!(statement, %code, "the database refused a call for a fault of the service");
                }
                code.into()
            }
            Self::Conflict(cause) => {
                tracing::debug!(statement, cause = told(&cause), "conflicts did not end");
                ErrorCode::DatabaseUnavailable.into()
            }
            Self::Lost(cause) if mutates => {
                tracing::warn!(statement, cause = told(&cause), "the connection broke; the outcome is unknown");
                ErrorCode::UnknownOutcome.into()
            }
            Self::Lost(cause) => {
                tracing::warn!(statement, cause = told(&cause), "the connection broke");
                ErrorCode::DatabaseUnavailable.into()
            }
            Self::Unavailable(cause) => {
                tracing::warn!(statement, %cause, "the database is unavailable");
                ErrorCode::DatabaseUnavailable.into()
            }
            Self::Unexpected(cause) => {
                tracing::error!(statement, cause = told(&cause), "unexpected database error");
                ErrorCode::Internal.into()
            }
        }
    }
}

/// Did a connection from node to node break, or the node's own postmaster end? In these files Citus has no SQLSTATE for either: it
/// passes on what the other node said, and XX000 when nothing was said; and a session whose postmaster is gone says XX000 when it
/// waits for other nodes.
fn is_of_other_node(error: &tokio_postgres::Error) -> bool {
    let file = error.as_db_error().and_then(DbError::file).unwrap_or_default();
    CITUS_CONNECTIONS.iter().any(|name| file.ends_with(name))
}

/// An error in full, for the log: what the server said, or the chain of causes on this side.
pub fn told(error: &tokio_postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        let place = said.where_().unwrap_or_default();
        return format!("{} {} {place}", said.code().code(), said.message()).trim_end().to_owned();
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    text
}
