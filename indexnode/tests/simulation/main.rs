//! The seeded simulation: a group of replicas as in production, on hosts with a simulated network, disks, clocks and
//! PostgreSQL. `make simulate SEED=n` replays a seed with its trace.

mod answers;
mod client;
mod disk;
mod faults;
mod history;
mod host;
mod invariants;
mod network;
mod postgres;
mod run;
mod scenarios;
mod seeded;
mod shim;
mod standby;
mod timelines;
mod trace;
mod tree;
mod upstream;
mod world;
