//! The steps that verbs are made of, as far as they are written in Rust; `sql/steps` has the others.

pub mod access;
pub mod answers;
pub mod batch;
pub mod change_stream;
pub mod counts;
pub mod id_blocks;
pub mod key;
pub mod latch;
pub mod lease;
pub mod name;
pub mod proof;
pub mod removal;
pub mod request_age;
pub mod segment;
