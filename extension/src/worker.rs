//! Background processes: the launcher, and a worker in each database.

pub mod launcher;
mod maintenance;
mod process;
