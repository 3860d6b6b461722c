//! The fence of segments of volumes (P59): a row may name new bytes only under the epoch that this node admits for their segment.
//!
//! A verb that stores a locator of new bytes latches their segments shared, in a statement of its own, and then checks
//! (P7). The admission of a new epoch latches them exclusively (`sql/verbs/admit_segments.sql`). The table of
//! admissions is an ordinary one, also on Citus: each node has its own rows, so the check asks no other node.

use std::collections::HashMap;

use mantle_types::{ErrorCode, LeasedSegment, Lineage, inline::is_inline, segment::VOLUME_LOCATOR_PREFIX};
use pgrx::prelude::*;

use super::lease::lineage_of_node;
use crate::{
    fault::{Fault, sqlstate},
    postgres::{
        probe::{Key, Table},
        row::Row,
    },
};

/// Whether a locator is of bytes in a volume.
pub fn is_in_volume(locator: &str) -> bool {
    locator.starts_with(VOLUME_LOCATOR_PREFIX)
}

/// What a locator of bytes in a volume begins with; `None` for any other, and for numbers that no row has.
pub fn segment_of(locator: &str) -> Option<(i32, i32, i64)> {
    let (LeasedSegment { volume, segment, epoch }, _) = LeasedSegment::of_locator(locator)?;
    Some((volume.try_into().ok()?, segment.try_into().ok()?, epoch.try_into().ok()?))
}

/// The epochs that this node admits, as far as a call has asked for them. Its latches keep them as they are.
#[derive(Default)]
pub struct Admitted(HashMap<(i32, i32), Option<i64>>);

impl Admitted {
    /// Why a row may not name these bytes. Call it only after the latch of the segment, and within `Spi::connect`.
    pub fn fault(&mut self, locator: &str) -> Option<ErrorCode> {
        if !is_in_volume(locator) {
            // Who gives the bytes gives no locator (P62).
            return is_inline(locator).then_some(ErrorCode::InvalidLocator);
        }
        let Some((volume, segment, epoch)) = segment_of(locator) else { return Some(ErrorCode::InvalidLocator) };
        let admitted = *self.0.entry((volume, segment)).or_insert_with(|| admitted(volume, segment));
        (admitted != Some(epoch)).then_some(ErrorCode::StaleSegment)
    }
}

/// The epoch that this node admits for a segment. An admission ends with the history in which it was made: in another
/// history rows may have an older state, so that bitmaps derived from them are wrong (P61).
fn admitted(volume: i32, segment: i32) -> Option<i64> {
    let read = |row: &Row| (row.named::<i64>(c"epoch"), row.named::<String>(c"lineage"));
    let key = [Key::int4(1, volume), Key::int4(2, segment)];
    let (epoch, lineage) = Table::open(c"admitted_segments").find(&key, read)?;
    let is_current = lineage?.parse::<Lineage>().is_ok_and(|lineage| lineage == lineage_of_node());
    epoch.filter(|_| is_current)
}

/// MT048 if a row may not name the bytes of this locator, because their segment is not, or not any more, leased under
/// its epoch; MT049 if it begins like a locator of bytes in a volume but is not a valid one, or if it is of bytes inside
/// PostgreSQL, which have to come with the call. NULL for every other locator.
#[pg_extern(volatile)]
fn segment_fault(locator: Option<&str>) -> Fault {
    let locator = locator.filter(|locator| is_in_volume(locator) || is_inline(locator))?;
    Spi::connect_mut(|_| Admitted::default().fault(locator)).map(sqlstate)
}

/// The volume that a locator names; NULL if it names none.
#[pg_extern(immutable, parallel_safe, strict)]
fn locator_volume(locator: &str) -> Option<i32> {
    segment_of(locator).map(|(volume, ..)| volume)
}

/// The segment, within its volume, that a locator names; NULL if it names none.
#[pg_extern(immutable, parallel_safe, strict)]
fn locator_segment(locator: &str) -> Option<i32> {
    segment_of(locator).map(|(_, segment, _)| segment)
}
