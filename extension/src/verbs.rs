//! The verbs whose entry is in Rust: `mantle.mkdir` and `mantle.put_object`, `mantle.rename_directory` and `mantle.rmdir`.
//! Each has a fast path for the usual case here, and a fallback for everything else in `sql/verbs`.

mod elements;
mod entry;
mod fast_path;
mod mkdir;
mod put_object;
mod rename_directory;
mod rmdir;
mod tables;
