//! Counts what the store asks of a file.

use std::{
    io::{self, IoSlice},
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use mantle_volumes::{RealFile, VolumeFile};

/// System calls that write, flushes, and bytes written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calls {
    pub writes: f64,
    pub flushes: f64,
    pub bytes: f64,
}

impl Calls {
    pub fn since(self, before: Self) -> Self {
        Self {
            writes: self.writes - before.writes,
            flushes: self.flushes - before.flushes,
            bytes: self.bytes - before.bytes,
        }
    }

    pub fn per_second(self, period: Duration) -> Self {
        let seconds = period.as_secs_f64();
        Self { writes: self.writes / seconds, flushes: self.flushes / seconds, bytes: self.bytes / seconds }
    }
}

pub struct Counted {
    file: RealFile,
    writes: AtomicU64,
    flushes: AtomicU64,
    bytes: AtomicU64,
}

impl Counted {
    pub fn new(file: RealFile) -> Self {
        Self { file, writes: AtomicU64::new(0), flushes: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    pub fn calls(&self) -> Calls {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        Calls { writes: read(&self.writes), flushes: read(&self.flushes), bytes: read(&self.bytes) }
    }
}

impl VolumeFile for Counted {
    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, at)
    }

    fn read_cached_at(&self, buffer: &mut [u8], at: u64) -> usize {
        self.file.read_cached_at(buffer, at)
    }

    fn forget_cached(&self, range: Range<u64>) {
        self.file.forget_cached(range);
    }

    fn write_all_at(&self, pieces: &mut [IoSlice<'_>], at: u64) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(pieces.iter().map(|piece| piece.len() as u64).sum(), Ordering::Relaxed);
        self.file.write_all_at(pieces, at)
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.file.flush()
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.file.reserve(bytes)
    }

    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }
}
