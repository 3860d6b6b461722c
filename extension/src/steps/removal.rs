//! The removal of a directory: it is empty, it leaves a tombstone (P16), and its parent is queued for pruning (P17).

use std::iter::zip;

use pgrx::{pg_sys, prelude::*};

use super::{counts::next_number, key::entry_key};
use crate::{
    citus::{
        placement::{delta_ts_base, open_local},
        shards::is_distributed,
    },
    postgres::{
        catalog::{find_relation, schema},
        clock::{clock_timestamp, now},
        probe::{Key, Table},
        row::{Row, value, values},
        saved_plan::SavedPlan,
        writer::{TupleCopy, Writer},
    },
};

const INT8: pg_sys::Oid = pg_sys::INT8OID;

thread_local! {
    // For Citus. The first entry in order instead of EXISTS: if most entries are in few directories, the planner expects to
    // find one soon in any directory, and scans the whole table for an empty one.
    static FIRST: SavedPlan = const { SavedPlan::new(
        c"SELECT m.name FROM mantle.meta m WHERE m.pid = $1 AND m.name < '/' ORDER BY m.name LIMIT 1", &[INT8]) };
    static LATER: SavedPlan = const { SavedPlan::new(
        c"SELECT m.name FROM mantle.meta m WHERE m.pid = $1 AND m.name >= '0' ORDER BY m.name LIMIT 1", &[INT8]) };
    static DELETE_DELTAS: SavedPlan = const { SavedPlan::new(
        c"DELETE FROM mantle.meta m WHERE m.pid = $1 AND m.name = '/_ATTR' AND m.ts > 0", &[INT8]) };
    static TOMBSTONE: SavedPlan = const { SavedPlan::new(
        c"INSERT INTO mantle.meta AS m (pid, name, ts, ns, entries, subdirectories, bytes, created, modified, removed)
          VALUES ($1, '/_ATTR', 0, $2, 0, 0, 0, $3, $3, true)
              ON CONFLICT (pid, name, ts) DO UPDATE
             SET entries = 0, subdirectories = 0, bytes = 0, created = excluded.created, modified = excluded.modified,
                 removed = true", &[INT8, INT8, pg_sys::TIMESTAMPTZOID]) };
}

/// Whether a directory has no entries.
#[pg_extern(volatile)]
fn is_empty(p_id: Option<i64>) -> Option<bool> {
    let id = p_id?;
    // Attribute and delta records (`/_ATTR`) lie between `/` and `0`.
    Some(Spi::connect_mut(|_| {
        if is_distributed() {
            // Not in the shard itself, which would stay here until the commit, as for a change.
            return [&FIRST, &LATER].into_iter().all(|plan| plan.with(|s| s.run(&[value(id)])) == 0);
        }
        let meta = Table::open(c"meta");
        let parts = [Key::text_below(2, "/"), Key::text_from(2, "0", true)];
        parts.into_iter().all(|part| meta.find(&[Key::int8(1, id), part], |_| ()).is_none())
    }))
}

/// Writes the tombstone of a removed directory. The caller holds the exclusive latch of p_id and has found it empty since. The
/// tombstone refuses creates that resolved the directory before. Delta records are deleted in the same transaction.
#[pg_extern(volatile)]
fn write_tombstone(p_ns: i64, p_id: i64) {
    let now = clock_timestamp();
    Spi::connect_mut(|_| match open_local(p_id, |tables| Writer::open(&tables.meta)) {
        Some(mut meta) => write_to(&mut meta, p_ns, p_id, now),
        None => {
            DELETE_DELTAS.with(|s| s.run(&[value(p_id)]));
            TOMBSTONE.with(|s| s.run(&[value(p_id), value(p_ns), value(now)]));
        }
    });
}

fn write_to(meta: &mut Writer, ns: i64, id: i64, now: i64) {
    let deltas = [Key::int8(1, id), Key::text(2, "/_ATTR"), Key::int8_above(3, 0)];
    for delta in meta.find_all(&deltas, TupleCopy::of) {
        meta.delete(&delta);
    }
    let columns = meta.columns([c"created", c"modified", c"entries", c"subdirectories", c"bytes", c"removed"]);
    let tombstone = zip(columns, values![now, now, 0_i64, 0_i64, 0_i64, true]);
    match meta.find(&entry_key(id, "/_ATTR"), TupleCopy::of) {
        Some(record) => meta.update(&record, tombstone),
        None => {
            let key = meta.columns([c"pid", c"name", c"ts", c"ns"]);
            meta.insert(zip(key, values![id, "/_ATTR", 0_i64, ns]).chain(tombstone));
        }
    }
}

/// Queues a directory that has lost an entry, as `mantle.queue_pruning` does. Only where the queue is not distributed, under
/// the directory's latch, and within `Spi::connect`.
pub fn queue_pruning(meta: &Writer, id: i64) {
    if is_made_by_request(meta, id) {
        return;
    }
    let mut queue = Writer::open(c"prune_queue");
    let columns = queue.columns([c"pid", c"seq", c"id", c"queued"]);
    queue.insert(zip(columns, values![id, delta_ts_base() + next_number(), id, now()]));
}

/// Whether a directory stays when it is empty, and so need not be looked at by the pruner (P17). The latch keeps that so:
/// who makes it implicit takes it exclusively, and then queues it. `false` if the index is missing.
fn is_made_by_request(meta: &Writer, id: i64) -> bool {
    let index = find_relation(c"meta_directory_id", schema());
    let read = |row: &Row| row.named::<bool>(c"explicit") == Some(true);
    index != pg_sys::InvalidOid && meta.find_by(index, Key::int8(DIRECTORY_ID, id), read) == Some(true)
}

/// The number of the MetaTable's column `id`.
const DIRECTORY_ID: i16 = 5;
