//! Verbs that are entered in Rust: mkdir and put_object.

mod elements;
mod entry;
mod fast_path;
mod mkdir;
mod put_object;
mod tables;
