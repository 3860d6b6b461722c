//! How a command ends. A script decides by the exit code alone, so each code has one meaning, in one table: `mantle
//! --help` shows it and docs/command-line.md is generated from it. What a failure means for the caller follows from its
//! SQLSTATE or its row in the error table, never from its text.

use std::{error::Error as StdError, fmt, process::ExitCode};

use mantle_types::ErrorCode;
use serde::Serialize;
use tokio_postgres::error::SqlState;

use crate::passing::is_passing;

/// The ends of a command. Where several apply, the first of this list that is not `Fine` is reported ([`Exit::and`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    Fault,
    Permission,
    Usage,
    Other,
    Away,
    Interrupted,
    Fine,
}

impl Exit {
    /// All ends, by their codes.
    pub const ALL: [Self; 7] =
        [Self::Fine, Self::Fault, Self::Usage, Self::Permission, Self::Away, Self::Other, Self::Interrupted];

    /// The code of the process, its name in JSON, and what it means.
    const fn row(self) -> (u8, &'static str, &'static str) {
        match self {
            Self::Fine => {
                (0, "fine", "Done, and nothing is wrong. An import that refused and reported lines is fine too.")
            }
            Self::Fault => (
                1,
                "fault",
                "What was looked at is not as it should be: a difference, a replica that is not ready or is down, a \
                 move that was taken back.",
            ),
            Self::Usage => (
                2,
                "usage",
                "An option, a URL, a file or a name is missing, wrong or unknown, or the request is not allowed.",
            ),
            Self::Permission => {
                (3, "permission", "PostgreSQL refuses the role: its password, or a privilege that the command needs.")
            }
            Self::Away => (
                4,
                "away",
                "PostgreSQL or the index does not answer, or not in time. The same command may succeed later.",
            ),
            Self::Other => (5, "other", "Anything else; the message has the cause."),
            Self::Interrupted => (130, "interrupted", "Ctrl-C."),
        }
    }

    pub fn code(self) -> u8 {
        self.row().0
    }

    pub fn name(self) -> &'static str {
        self.row().1
    }

    pub fn meaning(self) -> &'static str {
        self.row().2
    }

    /// The end of a command of which one part ended so, and another like `other`.
    pub fn and(self, other: Self) -> Self {
        self.min(other)
    }

    /// The end of a command that failed.
    pub fn of(error: &anyhow::Error) -> Self {
        error.chain().find_map(of_cause).unwrap_or(Self::Other)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// A failure whose end is known where it is found.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    exit: Exit,
    text: String,
}

impl Failure {
    pub fn new(exit: Exit, text: impl fmt::Display) -> Self {
        Self { exit, text: text.to_string() }
    }

    /// A failed statement or connection.
    pub fn of_postgresql(error: &tokio_postgres::Error, text: impl fmt::Display) -> Self {
        Self::new(of_postgresql(error), text)
    }
}

/// An error with a known end.
pub fn failure(exit: Exit, text: impl fmt::Display) -> anyhow::Error {
    Failure::new(exit, text).into()
}

fn of_cause(cause: &(dyn StdError + 'static)) -> Option<Exit> {
    if let Some(failure) = cause.downcast_ref::<Failure>() {
        return Some(failure.exit);
    }
    if let Some(error) = cause.downcast_ref::<tokio_postgres::Error>() {
        return Some(of_postgresql(error));
    }
    if let Some(error) = cause.downcast_ref::<mantle_types::Error>() {
        return Some(of_code(error.code()));
    }
    None
}

/// What a failed statement or connection means for the caller.
fn of_postgresql(error: &tokio_postgres::Error) -> Exit {
    let Some(state) = error.code() else {
        return if is_passing(error) { Exit::Away } else { Exit::Other };
    };
    if let Some(code) = ErrorCode::from_sqlstate(state.code()) {
        return of_code(code);
    }
    // Class 28: invalid authorization specification. Class 57: an operator's intervention, also the end by a timeout.
    match &state.code()[..2] {
        "28" => Exit::Permission,
        "57" => Exit::Away,
        _ if *state == SqlState::INSUFFICIENT_PRIVILEGE => Exit::Permission,
        // No such database; no such namespace or group; a namespace that moves elsewhere.
        _ if [SqlState::INVALID_CATALOG_NAME, SqlState::UNDEFINED_OBJECT, SqlState::OBJECT_IN_USE].contains(state) => {
            Exit::Usage
        }
        _ if is_passing(error) => Exit::Away,
        _ => Exit::Other,
    }
}

/// What an error of the table means for the caller: the table's HTTP status says it.
fn of_code(code: ErrorCode) -> Exit {
    match (code, code.row().http) {
        // The group's number is wrong, or its replicas are not told yet to host it.
        (ErrorCode::UnknownGroup, _) => Exit::Usage,
        (_, 401 | 403) => Exit::Permission,
        (_, 400..=499 | 501) => Exit::Usage,
        (_, 503) => Exit::Away,
        _ => Exit::Other,
    }
}

/// The failure and its causes in one line. A failed statement is told by PostgreSQL's message alone, because
/// `tokio_postgres::Error` says no more than "db error". What a wrapper repeats of its cause is said once.
pub fn message(error: &anyhow::Error) -> String {
    let says_nothing = |cause: &&(dyn StdError + 'static)| {
        cause.downcast_ref::<tokio_postgres::Error>().is_some_and(|error| error.as_db_error().is_some())
    };
    let mut parts: Vec<String> = error.chain().filter(|cause| !says_nothing(cause)).map(ToString::to_string).collect();
    parts.dedup();
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use anyhow::Context;
    use mantle_types::{Error, error::ERROR_TABLE};

    use super::*;

    #[test]
    fn every_end_has_a_code_and_a_name_of_its_own() {
        assert!(Exit::ALL.is_sorted_by_key(|exit| exit.code()));
        assert_eq!(Exit::ALL.iter().map(|exit| exit.code()).collect::<HashSet<_>>().len(), Exit::ALL.len());
        for exit in Exit::ALL {
            assert_eq!(serde_json::to_value(exit).unwrap(), exit.name());
        }
    }

    #[test]
    fn a_fault_hides_no_other_end_and_is_hidden_by_none() {
        for exit in Exit::ALL {
            assert_eq!(exit.and(Exit::Fine), exit);
            assert_eq!(exit.and(Exit::Fault), Exit::Fault);
        }
    }

    #[test]
    fn a_cause_decides_below_any_context() {
        let of = |code: ErrorCode| Exit::of(&Err::<(), _>(Error::from(code)).context("outer").unwrap_err());
        assert_eq!(of(ErrorCode::InvalidArgument), Exit::Usage);
        assert_eq!(of(ErrorCode::AccessDenied), Exit::Permission);
        assert_eq!(of(ErrorCode::IndexUnavailable), Exit::Away);
        assert_eq!(of(ErrorCode::UnknownGroup), Exit::Usage);
        assert_eq!(of(ErrorCode::Internal), Exit::Other);
        assert_eq!(Exit::of(&failure(Exit::Fault, "x").context("outer")), Exit::Fault);
        assert_eq!(Exit::of(&anyhow::anyhow!("x")), Exit::Other);
    }

    #[test]
    fn no_error_of_the_table_is_a_fault_or_fine() {
        for row in ERROR_TABLE {
            assert!(
                matches!(of_code(row.code), Exit::Usage | Exit::Permission | Exit::Away | Exit::Other),
                "{}",
                row.name
            );
        }
    }
}
