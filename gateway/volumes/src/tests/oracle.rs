//! What the database and the client know: which write each key names, which changes a failover would undo, and the bytes of
//! every write, which follow from key and version.

use std::collections::BTreeMap;

use crate::{
    generation::Generation,
    locator::Locator,
    place::{Extent, Geometry, Run, SegmentId},
};

/// A write: its generation's id is its version, which no other write of the history has.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub key: u32,
    pub generation: Generation,
    pub locators: Vec<Locator>,
    /// A bit of its blocks was flipped: it may answer an error.
    pub is_damaged: bool,
}

impl Row {
    pub(super) fn bytes(&self) -> u64 {
        self.locators.iter().map(Locator::bytes).sum()
    }

    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> {
        self.locators.iter().flat_map(Locator::extents)
    }
}

/// The bytes of a write name its key and its version; the rest looks random.
pub(super) fn content(key: u32, generation: Generation, bytes: usize) -> Vec<u8> {
    let mut state =
        u64::from(key) << 32 ^ generation.id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(generation.timeline);
    let mut content = format!("key {key} version {generation} ").into_bytes();
    content.reserve(bytes + 8);
    while content.len() < bytes {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        content.extend_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
    }
    content.truncate(bytes);
    content
}

/// The metadata database.
#[derive(Default)]
pub(super) struct Database {
    rows: BTreeMap<u32, Row>,
    /// What the key named before each change that is not durable yet: a failover undoes them.
    undo: Vec<(u32, Option<Row>)>,
    /// Every write that was ever finished; a reader may still hold its locator.
    history: Vec<Row>,
    /// Deleted durably, and not freed yet.
    freed: Vec<Locator>,
}

impl Database {
    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values()
    }

    pub(super) fn rows_mut(&mut self) -> impl Iterator<Item = &mut Row> {
        self.rows.values_mut().chain(self.undo.iter_mut().filter_map(|(_, before)| before.as_mut()))
    }

    pub(super) fn row(&self, number: usize) -> Option<&Row> {
        self.rows.values().nth(number % self.rows.len().max(1))
    }

    pub(super) fn past(&self, number: usize) -> Option<&Row> {
        self.history.get(number % self.history.len().max(1))
    }

    pub(super) fn history(&self) -> impl Iterator<Item = &Row> {
        self.history.iter()
    }

    pub(super) fn remember(&mut self, row: Row) {
        self.history.push(row);
    }

    /// A transaction commits, and is not durable yet. Returns what it deleted.
    pub(super) fn change(&mut self, key: u32, row: Option<Row>) -> Vec<Locator> {
        let before = match row {
            Some(row) => self.rows.insert(key, row),
            None => self.rows.remove(&key),
        };
        let deleted = before.iter().flat_map(|before| before.locators.clone()).collect();
        self.undo.push((key, before));
        deleted
    }

    /// Everything that has committed is durable on whatever may be promoted.
    pub(super) fn make_durable(&mut self) {
        self.freed.extend(self.undo.drain(..).filter_map(|(_, before)| before).flat_map(|before| before.locators));
    }

    pub(super) fn take_freed(&mut self) -> Vec<Locator> {
        std::mem::take(&mut self.freed)
    }

    /// A standby is promoted that lacks what is not durable.
    pub(super) fn fail_over(&mut self) {
        while let Some((key, before)) = self.undo.pop() {
            match before {
                Some(before) => self.rows.insert(key, before),
                None => self.rows.remove(&key),
            };
        }
    }

    /// What must not be allocated: what rows name, and what they name again if the last deletes are undone.
    pub(super) fn used(&self, segment: SegmentId, geometry: Geometry) -> Vec<Run> {
        let undone = self.undo.iter().filter_map(|(_, before)| before.as_ref());
        let extents = self.rows.values().chain(undone).flat_map(Row::extents);
        extents.filter(|extent| extent.segment == segment).map(|extent| extent.run(geometry).unwrap()).collect()
    }

    pub(super) fn forget_freed(&mut self) {
        self.freed.clear();
    }
}
