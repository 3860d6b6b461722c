//! The use cases, one verb a file. They know the index, the database and the bytes, and nothing of HTTP.

pub mod delete_object;
pub mod get_object;
pub mod list;
pub mod list_keys;
mod locate;
mod locked;
pub mod mkdir;
pub mod namespaces;
mod parents;
pub mod put_object;
pub mod remove_tree;
pub mod rename;
mod rename_object;
pub mod rmdir;
pub mod set_attributes;
pub mod stat;
pub mod usage;

/// How often a use case starts again because what it had resolved was removed or moved meanwhile.
const RESTARTS_MAX: u32 = 6;

/// A directory's name as the database has it.
fn directory_name(name: &str) -> String {
    format!("{name}/")
}
