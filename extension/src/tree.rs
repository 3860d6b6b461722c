//! Trees of directories: pages of keys in S3's order, computations over all directories of a namespace, plans of
//! imports.

mod import_plan;
mod in_memory;
mod walk;
