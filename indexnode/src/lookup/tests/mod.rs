//! Tests of the cache: its rules by example, and random histories against the set of allowed answers.

mod histories;
mod rules;
mod waits;
mod world;
