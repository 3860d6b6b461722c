//! `mantle.mkdir` and `mantle.put_object`, the verbs whose entry is in Rust. Each has a fast path for new entries here,
//! and a fallback for everything else in `sql/verbs`.

mod elements;
mod entry;
mod fast_path;
mod mkdir;
mod put_object;
mod tables;
