//! The events of a simulation, as a hash and, on request, as text.

use std::{
    fmt::{Arguments, Write},
    sync::Arc,
};

use parking_lot::Mutex;

/// The trace of one simulation; clones share it.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<Inner>>);

struct Inner {
    hash: u64,
    events: u64,
    prints: bool,
    line: String,
}

impl Trace {
    /// An empty trace. `prints`: prints every event.
    pub fn new(prints: bool) -> Self {
        Self(Arc::new(Mutex::new(Inner { hash: 0xcbf2_9ce4_8422_2325, events: 0, prints, line: String::new() })))
    }

    /// Records an event.
    pub fn note(&self, event: Arguments<'_>) {
        let mut inner = self.0.lock();
        inner.line.clear();
        let line = {
            let mut line = std::mem::take(&mut inner.line);
            // A write to a String cannot fail.
            let _ = line.write_fmt(event);
            line
        };
        inner.events += 1;
        // FNV-1a.
        for byte in line.as_bytes() {
            inner.hash = (inner.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if inner.prints {
            println!("{line}");
        }
        inner.line = line;
    }

    /// Hash and number of the events.
    pub fn sum(&self) -> (u64, u64) {
        let inner = self.0.lock();
        (inner.hash, inner.events)
    }
}
