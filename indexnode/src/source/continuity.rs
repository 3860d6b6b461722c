//! Decides whether the index can continue from its position or must be rebuilt, for each source when its stream begins
//! (P35). The walsender gives the facts, on the same connection that will stream.

use std::fmt;

use mantle_types::Lsn;

use crate::{
    failpoints::{self, Failpoint},
    index::command::Source,
    postgres::upstream::{Server, Slot},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildReason {
    pub text: String,
    /// The index may have changes that PostgreSQL lost: it must not serve while it is rebuilt.
    pub is_diverged: bool,
}

impl RebuildReason {
    /// The index lacks changes, but has none that PostgreSQL lost.
    pub fn behind(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_diverged: false }
    }

    /// The index has changes that PostgreSQL lost, or never had.
    pub fn diverged(text: String) -> Self {
        Self { text, is_diverged: true }
    }
}

impl fmt::Display for RebuildReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Checks that this server's history contains everything that was applied.
pub fn check_history(known: &Source, server: &Server) -> Result<(), RebuildReason> {
    if failpoints::is_hit(Failpoint::FollowAnyTimeline) {
        return Ok(());
    }
    let (ours, theirs) = (known.lineage, server.lineage);
    if ours.system_identifier != theirs.system_identifier {
        let (theirs, ours) = (theirs.system_identifier, ours.system_identifier);
        return Err(RebuildReason::diverged(format!("PostgreSQL is system {theirs}, the index reads from {ours}")));
    }
    let end = end_of(known);
    let (our, their) = (ours.timeline, theirs.timeline);
    if our == their && end <= server.flushed {
        return Ok(());
    }
    let why = if our == their {
        format!("PostgreSQL was set back to {}, the index has {end}", server.flushed)
    } else {
        match server.switch_points.iter().find(|(timeline, _)| *timeline == our) {
            Some((_, switch)) if end <= *switch => return Ok(()),
            Some((_, switch)) => format!("PostgreSQL left timeline {our} at {switch} for {their}, the index has {end}"),
            None => format!("PostgreSQL is on timeline {their}, which does not descend from {our}"),
        }
    };
    Err(RebuildReason::diverged(why))
}

/// Checks that the slot still sends everything that is not applied yet.
pub fn check_slot(applied_end: Lsn, slot: Option<&Slot>) -> Result<(), RebuildReason> {
    match slot {
        None => Err(RebuildReason::behind("the slot is gone")),
        Some(slot) if slot.is_lost => Err(RebuildReason::behind("the slot's WAL is gone")),
        Some(Slot { confirmed, .. }) if *confirmed > applied_end => {
            Err(RebuildReason::behind(format!("the slot was advanced to {confirmed}, the index has {applied_end}")))
        }
        Some(_) => Ok(()),
    }
}

/// The position below which everything is applied.
pub fn end_of(source: &Source) -> Lsn {
    Lsn(source.applied.0.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use mantle_types::Lineage;

    use super::*;

    fn known(timeline: u32, end: u64) -> Source {
        let lineage = Lineage { system_identifier: 7, timeline };
        Source { lineage, applied: Lsn(end - 1), copied: Lsn(0) }
    }

    fn server(timeline: u32, flushed: u64, switch_points: &[(u32, u64)]) -> Server {
        let switch_points = switch_points.iter().map(|(timeline, lsn)| (*timeline, Lsn(*lsn))).collect();
        Server {
            lineage: Lineage { system_identifier: 7, timeline },
            started_us: 0,
            flushed: Lsn(flushed),
            switch_points,
        }
    }

    #[test]
    fn a_history_is_followed_up_to_its_switch_points() {
        let third = server(3, 900, &[(1, 100), (2, 500)]);
        for (timeline, end, is_ours) in
            [(1, 100, true), (1, 101, false), (2, 500, true), (2, 501, false), (3, 900, true), (3, 901, false)]
        {
            assert_eq!(check_history(&known(timeline, end), &third).is_ok(), is_ours, "timeline {timeline} at {end}");
        }
        // A sibling, and a server that went back.
        assert!(check_history(&known(2, 50), &server(3, 900, &[(1, 100)])).unwrap_err().is_diverged);
        assert!(check_history(&known(2, 50), &server(1, 900, &[])).unwrap_err().is_diverged);
        let stranger = Source { lineage: Lineage { system_identifier: 8, timeline: 3 }, ..known(3, 50) };
        assert!(check_history(&stranger, &third).unwrap_err().is_diverged);
    }

    #[test]
    fn a_slot_may_lag_but_not_lead() {
        let slot = |confirmed| Slot { active_pid: None, is_lost: false, confirmed: Lsn(confirmed) };
        assert!(check_slot(Lsn(100), Some(&slot(100))).is_ok());
        assert!(check_slot(Lsn(100), Some(&slot(20))).is_ok());
        for slot in [None, Some(slot(101)), Some(Slot { is_lost: true, ..slot(20) })] {
            assert!(!check_slot(Lsn(100), slot.as_ref()).unwrap_err().is_diverged);
        }
    }
}
