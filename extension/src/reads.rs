//! The reads that are written in Rust: `mantle.stat`, `mantle.list`, `mantle.list_filled`, `mantle.stat_local` and
//! `mantle.list_local`. Each scans the primary key of the MetaTable, or of a shard on this node, under the calling
//! statement's snapshot. They use no SPI, because to start and end a statement costs several times as much as to read
//! the row. If one of the first three cannot read in this way, the SQL function in `sql/reads` answers, with the same
//! result. What the last two cannot read, the gateway reads (`tests/concurrency/test_reads.py`).

mod answer;
mod list;
mod list_local;
mod packed;
mod page;
mod stat;
mod stat_local;
mod tables;
