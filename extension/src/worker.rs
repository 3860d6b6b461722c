//! Background processes: one launcher in the server, one worker in each database.

pub mod launcher;
mod maintenance;
mod outcomes;
mod process;
mod session;
