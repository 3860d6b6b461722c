//! The history file of a timeline, as the walsender's `TIMELINE_HISTORY` answers it.

use anyhow::{Context, Result};
use mantle_types::Lsn;

/// The lines of a timeline's history file: parent, switch point, and a reason that does not matter here.
pub fn parse_history(content: &str) -> Result<Vec<(u32, Lsn)>> {
    let entries = content.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    entries
        .map(|line| {
            let mut fields = line.split_whitespace();
            let parsed = fields.next().zip(fields.next()).and_then(|(timeline, lsn)| {
                // A timeline's number is decimal here.
                Some((timeline.parse().ok()?, lsn.parse().ok()?))
            });
            parsed.with_context(|| format!("a timeline's history has the line `{line}`"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_files_are_read() {
        let text = "1\t0/5000148\tno recovery target specified\n\n2\t1A/0\tbefore 2026-11-22 00:00:00+00\n";
        assert_eq!(parse_history(text).unwrap(), [(1, Lsn(0x500_0148)), (2, Lsn(0x1A_0000_0000))]);
        assert_eq!(parse_history("").unwrap(), []);
        for bad in ["1", "x 0/1", "1 0", "1\tz/1 r"] {
            assert!(parse_history(bad).is_err(), "{bad}");
        }
    }
}
