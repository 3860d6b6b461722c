//! `mantle.stat`, `mantle.stat_local`, `mantle.list` and `mantle.list_filled`, the reads whose entry is in Rust. Each
//! scans the primary key of the MetaTable, or of a shard that is on this node, under the calling statement's snapshot,
//! without SPI: starting and ending a statement cost several times as much as the row. Whatever they cannot read so is
//! left to the SQL functions in `sql/reads`, which answer the same (`tests/concurrency/test_reads.py`).

mod answer;
mod list;
mod stat;
mod tables;
