//! PostgreSQL's C API: everything that the layers above call without SQL.

pub mod advisory_lock;
pub mod call;
pub mod catalog;
pub mod clock;
pub mod descriptions;
pub mod function;
pub mod logical_message;
pub mod probe;
pub mod row;
pub mod saved_plan;
pub mod uncommitted;
pub mod versions;
pub mod writer;
