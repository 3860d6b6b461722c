//! Tests of the cache: its rules by example, and random histories against the set of answers that are right.

mod histories;
mod rules;
mod waits;
mod world;
