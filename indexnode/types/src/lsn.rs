//! PostgreSQL's log sequence number.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A byte position in the WAL of one PostgreSQL node and timeline. Comparable only within that source: code that keeps
/// LSNs of several sources keys them by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lsn(pub u64);

impl Lsn {
    /// PostgreSQL's InvalidXLogRecPtr: before everything.
    pub const INVALID: Self = Self(0);
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 as u32)
    }
}

/// The text is not two hexadecimal numbers of 32 bits with a slash between.
#[derive(Debug, thiserror::Error)]
#[error("not a log sequence number: {0:?}")]
pub struct ParseLsnError(String);

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let error = || ParseLsnError(s.to_owned());
        let (high, low) = s.split_once('/').ok_or_else(error)?;
        let high = u32::from_str_radix(high, 16).map_err(|_| error())?;
        let low = u32::from_str_radix(low, 16).map_err(|_| error())?;
        Ok(Self(u64::from(high) << 32 | u64::from(low)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for (text, value) in [("0/0", 0), ("16/B374D848", 0x16_B374_D848), ("FFFFFFFF/FFFFFFFF", u64::MAX)] {
            assert_eq!(text.parse::<Lsn>().unwrap(), Lsn(value));
            assert_eq!(Lsn(value).to_string(), text);
        }
    }

    #[test]
    fn bad_text_is_refused() {
        for text in ["", "/", "1", "1/", "/1", "1/2/3", "100000000/0", "g/0", "-1/0"] {
            assert!(text.parse::<Lsn>().is_err(), "{text}");
        }
    }
}
