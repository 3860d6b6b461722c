//! Trees of directories: walked in S3's key order, computed in memory, imported.

mod import_plan;
mod in_memory;
mod walk;
