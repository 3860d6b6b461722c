//! What the IndexNode asks of PostgreSQL: connections, statements, the walsender and the initial copy.
//!
//! [`upstream`] has the traits. [`database`] and the private modules implement them for PostgreSQL itself; the simulation
//! implements them for a model.

pub mod copy;
pub mod database;
pub(crate) mod kept_sessions;
mod session;
pub mod sql;
mod timelines;
pub mod upstream;
mod walsender;
