//! The one file that names HTTP statuses. The error table has those of errors.

use axum::http::StatusCode;
use mantle_types::ErrorCode;

/// A new entry or namespace was made.
pub const CREATED: StatusCode = StatusCode::CREATED;
/// Done, or already in the wanted state.
pub const DONE: StatusCode = StatusCode::OK;
/// Accepted: a background operation does the rest.
pub const ACCEPTED: StatusCode = StatusCode::ACCEPTED;
/// Removed; the answer has no body.
pub const REMOVED: StatusCode = StatusCode::NO_CONTENT;

/// The status of an error.
pub fn of(code: ErrorCode) -> StatusCode {
    StatusCode::from_u16(code.row().http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

#[cfg(test)]
mod tests {
    use mantle_types::error::ERROR_TABLE;

    #[test]
    fn every_error_has_a_status_of_its_own_class() {
        for row in ERROR_TABLE {
            let status = super::of(row.code);
            assert_eq!(status.as_u16(), row.http, "{}", row.name);
            assert!(status.is_client_error() || status.is_server_error(), "{}", row.name);
        }
    }
}
