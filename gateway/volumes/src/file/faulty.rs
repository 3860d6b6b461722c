//! A file in memory that fails as disks, kernels and power supplies do. All by a seed, so that a history can be repeated.
//!
//! - A crash keeps, of each sector that was written since the last flush, what it was before or after any of these writes. So
//!   writes are torn at sectors, dropped and reordered.
//! - A crash may take back the file's growth since the last flush, whatever it keeps of the writes.
//! - A flush that fails has written some sectors and forgotten the others, as Linux does: reads still see them, a later flush
//!   succeeds without them, and a crash shows that they are lost.
//! - Reads and writes fail, a write after some of its bytes; there is no space; bits flip.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice},
    ops::Range,
};

use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::VolumeFile;

/// What a disk writes as a whole, in bytes.
pub(crate) const DISK_SECTOR: usize = 512;
/// The same of persistent memory. With so small ones, header, checksums and data of a small extent are torn from each other.
pub(crate) const MEMORY_SECTOR: usize = 8;

/// How often calls fail, out of 1,000.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub read: u32,
    pub write: u32,
    pub no_space: u32,
    pub flush: u32,
}

struct State {
    random: StdRng,
    sector: usize,
    /// What the disk holds for certain. It may be shorter than what reads see.
    durable: Vec<u8>,
    /// What reads see.
    seen: Vec<u8>,
    /// Written since the last flush, in order.
    dirty: Vec<(usize, Vec<u8>)>,
    faults: Faults,
    /// The power fails after this many calls.
    power_fails_in: Option<u32>,
    is_down: bool,
}

pub(crate) struct FaultyFile(Mutex<State>);

impl FaultyFile {
    /// `sector` bytes are written as a whole.
    pub(crate) fn new(seed: u64, sector: usize) -> Self {
        Self(Mutex::new(State {
            random: StdRng::seed_from_u64(seed),
            sector,
            durable: Vec::new(),
            seen: Vec::new(),
            dirty: Vec::new(),
            faults: Faults::default(),
            power_fails_in: None,
            is_down: false,
        }))
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        self.0.lock().faults = faults;
    }

    /// Every call from the `calls`th write or flush on fails, until the restart.
    pub(crate) fn fail_power_in(&self, calls: u32) {
        self.0.lock().power_fails_in = Some(calls);
    }

    pub(crate) fn is_down(&self) -> bool {
        self.0.lock().is_down
    }

    /// The power fails now, if it has not, and comes back.
    pub(crate) fn restart(&self) {
        let state = &mut *self.0.lock();
        state.lose_unflushed();
        state.seen.clone_from(&state.durable);
        (state.is_down, state.power_fails_in) = (false, None);
    }

    /// Flips one bit on the disk, and in the kernel's cache of it.
    pub(crate) fn flip(&self, at: usize, bit: u8) {
        let state = &mut *self.0.lock();
        for byte in [&mut state.durable, &mut state.seen].into_iter().filter_map(|bytes| bytes.get_mut(at)) {
            *byte ^= 1 << bit;
        }
        // A write that is not flushed yet would be flipped there.
        for (begin, bytes) in &mut state.dirty {
            if let Some(byte) = at.checked_sub(*begin).and_then(|at| bytes.get_mut(at)) {
                *byte ^= 1 << bit;
            }
        }
    }
}

impl State {
    fn fails(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.random.random_range(0..1000) < per_mille
    }

    /// Counts a call; `true` if it does not come to its end.
    fn power_fails(&mut self) -> bool {
        match &mut self.power_fails_in {
            Some(0) => self.is_down = true,
            Some(calls) => *calls -= 1,
            None => {}
        }
        self.is_down
    }

    /// The file gets its new size or not. Each sector gets some of what was written to it, in order, up to any point.
    fn lose_unflushed(&mut self) {
        if self.random.random() {
            self.durable.resize(self.seen.len(), 0);
        }
        let dirty = std::mem::take(&mut self.dirty);
        // Of some crashes nothing is kept. Of some each write is kept whole or not at all, and of some all but its beginning.
        let kind = self.random.random_range(0..6);
        let whole: Vec<bool> = dirty.iter().map(|_| self.random.random()).collect();
        let begin_at: Vec<usize> =
            dirty.iter().map(|(at, _)| at / self.sector + self.random.random_range(0..8)).collect();
        let mut sectors: BTreeMap<usize, Vec<(usize, Range<usize>)>> = BTreeMap::new();
        for (number, (begin, bytes)) in dirty.iter().enumerate() {
            let end = begin + bytes.len();
            for sector in begin / self.sector..end.div_ceil(self.sector) {
                let part = (sector * self.sector).max(*begin)..((sector + 1) * self.sector).min(end);
                sectors.entry(sector).or_default().push((number, part));
            }
        }
        for (sector, writes) in sectors {
            let kept = match kind {
                0 => 0,
                1 => writes.iter().rposition(|(number, _)| whole[*number]).map_or(0, |last| last + 1),
                2 | 3 => writes.iter().rposition(|(number, _)| begin_at[*number] <= sector).map_or(0, |last| last + 1),
                _ => self.random.random_range(0..=writes.len()),
            };
            for (number, part) in &writes[..kept] {
                let (begin, bytes) = &dirty[*number];
                // Sectors behind the end of the file are lost with its size.
                if let Some(kept) = self.durable.get_mut(part.clone()) {
                    kept.copy_from_slice(&bytes[part.start - begin..part.end - begin]);
                }
            }
        }
    }

    fn write(&mut self, at: usize, bytes: Vec<u8>) {
        self.seen[at..at + bytes.len()].copy_from_slice(&bytes);
        self.dirty.push((at, bytes));
    }
}

fn broken() -> io::Error {
    rustix::io::Errno::IO.into()
}

impl VolumeFile for FaultyFile {
    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let state = &mut *self.0.lock();
        if state.is_down || state.fails(state.faults.read) {
            return Err(broken());
        }
        let at = at as usize;
        let bytes = state.seen.get(at..at + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn read_cached_at(&self, _buffer: &mut [u8], _at: u64) -> usize {
        0
    }

    fn write_all_at(&self, pieces: &mut [IoSlice<'_>], at: u64) -> io::Result<()> {
        let state = &mut *self.0.lock();
        if state.is_down {
            return Err(broken());
        }
        let (at, mut bytes) = (at as usize, Vec::new());
        pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        assert!(at + bytes.len() <= state.seen.len(), "a write behind the end of the volume");
        let no_space = state.fails(state.faults.no_space);
        if state.power_fails() || no_space || state.fails(state.faults.write) {
            let written = state.random.random_range(0..=bytes.len());
            bytes.truncate(written);
            state.write(at, bytes);
            return Err(if no_space { rustix::io::Errno::NOSPC.into() } else { broken() });
        }
        state.write(at, bytes);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let state = &mut *self.0.lock();
        if state.is_down || state.power_fails() {
            return Err(broken());
        }
        if state.fails(state.faults.flush) {
            state.lose_unflushed();
            return Err(broken());
        }
        let bytes = state.seen.len();
        state.durable.resize(bytes, 0);
        for (at, bytes) in std::mem::take(&mut state.dirty) {
            state.durable[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let state = &mut *self.0.lock();
        if state.is_down {
            return Err(broken());
        }
        if state.fails(state.faults.no_space) {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        let power_fails = state.power_fails();
        let bytes = state.seen.len().max(bytes as usize);
        state.seen.resize(bytes, 0);
        if power_fails { Err(broken()) } else { Ok(()) }
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.lock().seen.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_with(seed: u64, faults: Faults) -> FaultyFile {
        let file = FaultyFile::new(seed, DISK_SECTOR);
        file.reserve(4096).unwrap();
        file.write_all_at(&mut [IoSlice::new(&[1; 4096])], 0).unwrap();
        file.flush().unwrap();
        file.set_faults(faults);
        file
    }

    fn read(file: &FaultyFile) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn a_crash_tears_drops_and_reorders() {
        let (mut outcomes, mut torn, mut reordered) = (std::collections::HashSet::new(), 0, 0);
        for seed in 0..200 {
            let file = file_with(seed, Faults::default());
            file.write_all_at(&mut [IoSlice::new(&[2; 1024])], 512).unwrap();
            file.write_all_at(&mut [IoSlice::new(&[3; 1024])], 2048).unwrap();
            file.restart();
            let bytes = read(&file);
            let [a, b, c, d] = [bytes[512], bytes[1024], bytes[2048], bytes[2560]];
            torn += usize::from(a != b);
            reordered += usize::from(a == 1 && b == 1 && c == 3 && d == 3);
            outcomes.insert([a, b, c, d]);
            for sector in bytes.chunks(512) {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn");
            }
        }
        assert!(outcomes.len() == 16 && torn > 0 && reordered > 0, "{outcomes:?} {torn} {reordered}");
    }

    #[test]
    fn a_crash_may_take_growth_back_and_keep_later_writes() {
        let outcomes: std::collections::HashSet<_> = (0..50)
            .map(|seed| {
                let file = file_with(seed, Faults::default());
                file.reserve(8192).unwrap();
                file.write_all_at(&mut [IoSlice::new(&[2; 512])], 0).unwrap();
                file.write_all_at(&mut [IoSlice::new(&[2; 512])], 4096).unwrap();
                file.restart();
                (file.bytes().unwrap(), read(&file)[0])
            })
            .collect();
        assert_eq!(outcomes.len(), 4, "{outcomes:?}");
        let file = file_with(1, Faults { no_space: 1000, ..Faults::default() });
        assert_eq!(file.reserve(8192).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.bytes().unwrap(), 4096);
    }

    #[test]
    fn a_failed_flush_forgets() {
        let lost = (0..50).filter(|seed| {
            let file = file_with(*seed, Faults { flush: 1000, ..Faults::default() });
            file.write_all_at(&mut [IoSlice::new(&[2; 4096])], 0).unwrap();
            file.flush().unwrap_err();
            file.set_faults(Faults::default());
            assert!(read(&file) == [2; 4096], "the kernel's cache still has it");
            file.flush().unwrap();
            file.restart();
            read(&file) != [2; 4096]
        });
        assert!(lost.count() > 10);
    }
}
