//! `mantle.stat`, `mantle.list`, `mantle.list_filled`, `mantle.stat_local` and `mantle.list_local`, the reads whose entry is
//! in Rust. Each scans the primary key of the MetaTable, or of a shard that is on this node, under the calling statement's
//! snapshot, without SPI: starting and ending a statement cost several times as much as the row. What the first three cannot
//! read so is left to the SQL functions in `sql/reads`, which answer the same; what the others cannot, to the gateway
//! (`tests/concurrency/test_reads.py`).

mod answer;
mod list;
mod list_local;
mod packed;
mod page;
mod stat;
mod stat_local;
mod tables;
