//! The use cases, one verb per file. They use the index, the database and the bytes, and know nothing of HTTP.

pub mod copy_object;
pub mod delete_object;
mod directory_move;
pub mod get_object;
mod ghosts;
mod growth;
pub mod list;
pub mod list_keys;
mod locate;
pub mod migrate;
pub mod mkdir;
pub mod namespaces;
mod new_id;
mod object_bytes;
mod parents;
pub mod put_object;
pub mod remove_tree;
pub mod rename;
mod rename_object;
mod replay;
mod restarts;
pub mod rmdir;
pub mod set_attributes;
pub mod stat;
pub mod sweep;
pub mod uploads;
pub mod usage;
pub mod volumes;

/// A directory's name in the database.
fn directory_name(name: &str) -> String {
    format!("{name}/")
}
