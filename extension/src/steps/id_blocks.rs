//! Ids and the blocks that they are allocated in (P9).

use std::cell::{Cell, RefCell};

use mantle_types::ErrorCode;
use pgrx::{pg_sys, prelude::*};

use crate::{
    citus::shards::map_generation,
    fault::{Fault, sqlstate},
    postgres::{row::value, saved_plan::SavedPlan},
};

thread_local! {
    // The block that an id is of, if any; not one of this transaction, which may yet be rolled back.
    static BLOCK: SavedPlan = const { SavedPlan::new(
        c"SELECT b.first_id, b.last_id, b.allocated < now() FROM mantle.id_blocks b
           WHERE b.first_id <= $1 ORDER BY b.first_id DESC LIMIT 1", &[pg_sys::INT8OID]) };
    /// Blocks that were found recorded. Rows of id_blocks are never changed or removed.
    static BLOCKS: RefCell<Vec<(i64, i64)>> = const { RefCell::new(Vec::new()) };
    /// The generation of the map of shards when BLOCKS was last used.
    static GENERATION: Cell<i64> = const { Cell::new(0) };
}

/// Most blocks remembered: an id block serves a gateway for thousands of entries.
const BLOCKS_KEPT: usize = 16;

/// Is an id of a recorded block (P9)? Within `Spi::connect` only.
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
                    blocks.truncate(BLOCKS_KEPT - 1);
                    blocks.insert(0, (first, last));
                });
            }
            true
        }
        _ => false,
    }
}

/// Forgets the blocks when the MetaTable's definition has changed, or it was dropped.
fn forget_if_invalid() {
    if GENERATION.replace(map_generation()) != map_generation() {
        BLOCKS.with_borrow_mut(Vec::clear);
    }
}

/// The SQLSTATE of an id that no recorded block has, or NULL.
#[pg_extern(volatile)]
fn id_fault(id: Option<i64>) -> Fault {
    let recorded = id.is_some_and(|id| Spi::connect_mut(|_| is_recorded(id)));
    (!recorded).then(|| sqlstate(ErrorCode::InvalidId))
}
