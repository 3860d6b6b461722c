//! Checks that an id belongs to a recorded block (P9): a bare sequence could repeat ids after a failover.

use std::cell::{Cell, RefCell};

use mantle_types::ErrorCode;
use pgrx::{pg_sys, prelude::*};

use crate::{
    citus::shards::map_generation,
    fault::{Fault, sqlstate},
    postgres::{row::value, saved_plan::SavedPlan},
};

thread_local! {
    // The third column is false for a block of this transaction, which may still be rolled back.
    static BLOCK: SavedPlan = const { SavedPlan::new(
        c"SELECT b.first_id, b.last_id, b.allocated < now() FROM mantle.id_blocks b
           WHERE b.first_id <= $1 ORDER BY b.first_id DESC LIMIT 1", &[pg_sys::INT8OID]) };
    /// Recorded blocks, newest first. Rows of id_blocks are never changed or removed.
    static BLOCKS: RefCell<Vec<(i64, i64)>> = const { RefCell::new(Vec::new()) };
    /// The generation of the map of shards at the last use of BLOCKS.
    static GENERATION: Cell<i64> = const { Cell::new(0) };
}

/// Blocks that a session remembers; one serves a gateway for thousands of entries.
const BLOCKS_CACHED_MAX: usize = 16;

/// Whether a recorded block has this id. Only within `Spi::connect`.
pub fn is_recorded(id: i64) -> bool {
    forget_if_invalid();
    let of = |blocks: &Vec<(i64, i64)>| blocks.iter().any(|(first, last)| (*first..=*last).contains(&id));
    if BLOCKS.with_borrow(of) {
        return true;
    }
    let found = BLOCK.with(|s| {
        s.rows(&[value(id)], |row| (row.get::<i64>(1), row.get::<i64>(2), row.get::<bool>(3).unwrap_or(false)))
    });
    match found[..] {
        [(Some(first), Some(last), lasting)] if (first..=last).contains(&id) => {
            if lasting {
                BLOCKS.with_borrow_mut(|blocks| {
                    blocks.truncate(BLOCKS_CACHED_MAX - 1);
                    blocks.insert(0, (first, last));
                });
            }
            true
        }
        _ => false,
    }
}

/// Forgets the blocks after the MetaTable was changed or dropped: the extension may have been created again.
fn forget_if_invalid() {
    if GENERATION.replace(map_generation()) != map_generation() {
        BLOCKS.with_borrow_mut(Vec::clear);
    }
}

/// MT040 for an id that no recorded block has.
#[pg_extern(volatile)]
fn id_fault(id: Option<i64>) -> Fault {
    let recorded = id.is_some_and(|id| Spi::connect_mut(|_| is_recorded(id)));
    (!recorded).then(|| sqlstate(ErrorCode::InvalidId))
}
