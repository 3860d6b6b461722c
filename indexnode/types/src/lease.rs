//! The lease: until when, and in which history of the database, a resolved id may be used in a change (P8).
//!
//! A directory without an attribute record is live; a removed one has a tombstone, and tombstones are purged after a while. So
//! "absent" proves "live" only if the id was resolved shortly before, in this history of the database. The caller sends its
//! deadline and what it resolved under; PostgreSQL checks both after the latches.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Epoch, Error, ErrorCode};

/// A PostgreSQL node's history, in which its LSNs are positions. A promotion or a restore to a point in time begins a new
/// timeline; positions are comparable up to the point where it left the older one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lineage {
    /// `pg_control_system().system_identifier`.
    pub system_identifier: u64,
    /// Timeline on which the node writes its WAL.
    pub timeline: u32,
}

/// As text: `deadline/system identifier/timeline/epoch`, in decimal (docs/formats.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// No change after this, in microseconds since 1970 by the database's clock.
    pub deadline_us: i64,
    /// Lineage of the node that carries out the change.
    pub lineage: Lineage,
    /// Epoch of the index group that serves the namespace.
    pub epoch: Epoch,
}

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.system_identifier, self.timeline)
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.deadline_us, self.lineage, self.epoch)
    }
}

/// Parses the next decimal number between slashes.
fn number<'a, T: FromStr>(parts: &mut impl Iterator<Item = &'a str>) -> Result<T, Error> {
    let malformed = || Error::new(ErrorCode::InvalidArgument, "decimal numbers between slashes are expected");
    parts.next().and_then(|part| part.parse().ok()).ok_or_else(malformed)
}

fn at_end<'a, T>(mut parts: impl Iterator<Item = &'a str>, value: T) -> Result<T, Error> {
    match parts.next() {
        None => Ok(value),
        Some(_) => Err(Error::new(ErrorCode::InvalidArgument, "there are too many parts")),
    }
}

fn lineage<'a>(parts: &mut impl Iterator<Item = &'a str>) -> Result<Lineage, Error> {
    Ok(Lineage { system_identifier: number(parts)?, timeline: number(parts)? })
}

impl FromStr for Lineage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut parts = text.split('/');
        let value = lineage(&mut parts)?;
        at_end(parts, value)
    }
}

impl FromStr for Lease {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut parts = text.split('/');
        let deadline_us = number(&mut parts)?;
        let value = Self { deadline_us, lineage: lineage(&mut parts)?, epoch: Epoch(number(&mut parts)?) };
        at_end(parts, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_read_as_they_are_written() {
        let lineage = Lineage { system_identifier: u64::MAX, timeline: 3 };
        let lease = Lease { deadline_us: -1, lineage, epoch: Epoch(7) };
        assert_eq!(lease.to_string(), "-1/18446744073709551615/3/7");
        assert_eq!(lease.to_string().parse(), Ok(lease));
        assert_eq!(lineage.to_string().parse(), Ok(lineage));
    }

    #[test]
    fn what_is_not_a_lease_is_refused() {
        for text in ["", "1", "1/2/3", "1/2/3/4/5", "1/2/x/4", "1/-2/3/4", "1/2/4294967296/4", " 1/2/3/4"] {
            let refused = text.parse::<Lease>().expect_err(text);
            assert_eq!(refused.code(), ErrorCode::InvalidArgument, "{text}");
        }
    }
}
