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

fn number<T: FromStr>(text: &str) -> Result<T, Error> {
    let malformed = |_| Error::new(ErrorCode::InvalidArgument, "decimal numbers between slashes are expected");
    text.parse().map_err(malformed)
}

/// The `N` parts between slashes; a missing one is empty, which is no number.
fn parts<const N: usize>(text: &str) -> Result<[&str; N], Error> {
    let mut parts = text.split('/');
    let first = std::array::from_fn(|_| parts.next().unwrap_or_default());
    match parts.next() {
        None => Ok(first),
        Some(_) => Err(Error::new(ErrorCode::InvalidArgument, "there are too many parts")),
    }
}

impl FromStr for Lineage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let [system_identifier, timeline] = parts(text)?;
        Ok(Self { system_identifier: number(system_identifier)?, timeline: number(timeline)? })
    }
}

impl FromStr for Lease {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let [deadline, system_identifier, timeline, epoch] = parts(text)?;
        let lineage = Lineage { system_identifier: number(system_identifier)?, timeline: number(timeline)? };
        Ok(Self { deadline_us: number(deadline)?, lineage, epoch: Epoch(number(epoch)?) })
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
    fn malformed_leases_are_refused() {
        for text in ["", "1", "1/2/3", "1/2/3/4/5", "1/2/x/4", "1/-2/3/4", "1/2/4294967296/4", " 1/2/3/4"] {
            let refused = text.parse::<Lease>().expect_err(text);
            assert_eq!(refused.code(), ErrorCode::InvalidArgument, "{text}");
        }
    }
}
