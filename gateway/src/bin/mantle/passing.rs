//! Which failures of a statement or a connection justify another attempt.

use mantle_types::ErrorCode;
use tokio_postgres::error::SqlState;

/// Whether the same call may succeed on another attempt.
pub fn is_passing(error: &tokio_postgres::Error) -> bool {
    let Some(state) = error.code() else {
        // No SQLSTATE: the connection itself broke, unless a value could not be converted.
        return error.is_closed() || std::error::Error::source(error).is_some_and(|e| e.is::<std::io::Error>());
    };
    [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::TOO_MANY_CONNECTIONS,
        // On Citus, for a shard that has just moved.
        SqlState::UNDEFINED_TABLE,
    ]
    .contains(state)
        || state.code().starts_with("08")
        || ErrorCode::from_sqlstate(state.code()) == Some(ErrorCode::WrongNode)
}
