//! Random histories of one store over faulty volumes: puts that overlap and are given up, deletes, long reads, failovers of the
//! database, growth, power failures in the middle of anything. The same seed gives the same history.
//!
//! What must hold:
//! - A read returns the bytes of the write that was asked for or an error, whatever is at that place by now.
//! - A read of a row that is there, or was when the read began, returns its bytes, unless a bit of them was flipped.
//! - No two rows have a block in common.
//! - When nothing is in progress, the used blocks are those that rows name.
//! - Every volume can be mounted again, with every segment that it ever said it has.

mod mounts;

use std::{
    collections::BTreeSet,
    future::Future,
    ops::Range,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::StdRng};
use uuid::Uuid;

use super::{
    get::{Get, Violation, poll},
    mutation::{self, Mutation},
    oracle::{Database, Row, content},
    profile::Profile,
};
use crate::{
    Error, Generation, HEAD_BYTES, Locator, NewBytes, NewVolume, Options, Result, Store, Stored, UNIT_BYTES, Volume,
    VolumeId,
    file::faulty::{Faults, FaultyFile},
};

const CLUSTER: Uuid = Uuid::from_u128(1);
const REUSE_DELAY: Duration = Duration::from_millis(3);
const PIN_MAX: Duration = Duration::from_secs(3600);

struct Put {
    row: Row,
    future: Pin<Box<dyn Future<Output = Result<Stored>>>>,
}

struct Simulation {
    random: StdRng,
    profile: Profile,
    files: Vec<Arc<FaultyFile>>,
    epochs: Vec<u64>,
    /// How many segments each volume has.
    segments: Vec<u32>,
    clock: Arc<AtomicU64>,
    store: Store,
    database: Database,
    timeline: u32,
    next_id: u64,
    lease_epoch: u64,
    puts: Vec<Put>,
    gets: Vec<Get>,
    /// Committed or not: the gateway does not know.
    in_doubt: Vec<(Stored, Row)>,
    /// A write failed, or shared bytes were deleted, so blocks may be kept that no row names.
    has_kept: bool,
}

/// Runs a history.
pub(super) fn run(seed: u64) -> Result<(), Violation> {
    let mut random = StdRng::seed_from_u64(seed);
    let profile = Profile::of(&mut random);
    let mut simulation = Simulation::new(random, profile);
    for _ in 0..simulation.profile.steps {
        simulation.step()?;
    }
    simulation.end()
}

impl Simulation {
    fn new(mut random: StdRng, profile: Profile) -> Self {
        let files: Vec<_> =
            (0..profile.volumes).map(|_| Arc::new(FaultyFile::new(random.random(), profile.sector))).collect();
        for (volume, file) in (0..).map(VolumeId).zip(&files) {
            let new = NewVolume { cluster: CLUSTER, volume, geometry: profile.geometry, segments: profile.segments };
            Volume::create(&**file, new).unwrap();
        }
        let clock = Arc::new(AtomicU64::new(0));
        let mut simulation = Self {
            epochs: vec![0; files.len()],
            segments: vec![profile.segments; files.len()],
            store: store(&clock),
            random,
            profile,
            files,
            clock,
            database: Database::default(),
            timeline: 1,
            next_id: 1030,
            lease_epoch: 0,
            puts: Vec::new(),
            gets: Vec::new(),
            in_doubt: Vec::new(),
            has_kept: false,
        };
        simulation.mount().unwrap();
        simulation
    }

    fn chance(&mut self, per_cent: u32) -> bool {
        self.random.random_range(0..100) < per_cent
    }

    fn step(&mut self) -> Result<(), Violation> {
        if self.files.iter().any(|file| file.is_down()) {
            return self.restart();
        }
        self.clock.fetch_add(1, Ordering::Relaxed);
        match self.random.random_range(0..101) {
            0..22 => self.begin_put(),
            22..40 => self.drive(),
            40..58 => self.poll_put()?,
            58..60 => self.drop_put(),
            60..66 => self.delete(),
            66..72 => self.make_durable()?,
            72..82 => self.begin_get(),
            82..92 => self.poll_get()?,
            92 => self.settle()?,
            93 => self.lease_anew()?,
            94..96 => self.flip(),
            96 => self.fail_over()?,
            97 => {
                let (file, calls) = (self.random.random_range(0..self.files.len()), self.random.random_range(0..6));
                self.files[file].fail_power_in(calls);
            }
            98 => self.restart()?,
            99 => drop(self.gets.pop()),
            _ => self.grow()?,
        }
        Ok(())
    }

    fn begin_put(&mut self) {
        self.next_id += 1;
        let generation = Generation { timeline: self.timeline, id: self.next_id };
        let (key, bytes) =
            (self.random.random_range(0..self.profile.keys), self.random.random_range(self.profile.bytes.clone()));
        let mut content = Bytes::from(content(key, generation, bytes));
        let mut pieces = Vec::new();
        while !content.is_empty() {
            let cut = if self.chance(50) { content.len() } else { self.random.random_range(0..=content.len()) };
            pieces.push(content.split_to(cut));
        }
        let size = self.chance(70).then_some(bytes as u64);
        let mut writer = self.store.writer(NewBytes { generation, object: key.into(), size });
        let future = Box::pin(async move {
            for piece in pieces {
                writer.write(piece).await?;
            }
            writer.finish().await
        });
        self.puts.push(Put { row: Row { key, generation, locators: Vec::new(), is_damaged: false }, future });
    }

    fn drive(&mut self) {
        let volume = self.random.random_range(0..self.profile.volumes);
        self.store.drive(VolumeId(volume));
    }

    fn poll_put(&mut self) -> Result<(), Violation> {
        if self.puts.is_empty() {
            return Ok(());
        }
        let number = self.random.random_range(0..self.puts.len());
        let Poll::Ready(result) = poll(self.puts[number].future.as_mut()) else { return Ok(()) };
        let mut row = self.puts.swap_remove(number).row;
        match result {
            Ok(stored) => {
                row.locators.clone_from(&stored.locators);
                self.database.remember(row.clone());
                match self.random.random_range(0..10) {
                    0 => self.store.discard(&stored),
                    1 => {
                        match mutation::is(Mutation::DiscardInDoubt) {
                            true => self.store.discard(&stored),
                            false => self.store.leave_in_doubt(&stored),
                        }
                        self.in_doubt.push((stored, row));
                    }
                    _ => {
                        self.fence(&stored, &mut row)?;
                        self.commit(row)?;
                        self.store.named(&stored);
                    }
                }
                Ok(())
            }
            Err(Error::Io(_)) => {
                self.has_kept = true;
                Ok(())
            }
            Err(Error::Full { .. } | Error::ReadOnly(_)) => Ok(()),
            Err(other) => Err(format!("a put answered {other}")),
        }
    }

    /// A segment that was leased again during the put: the database refuses the epoch before, and the put names the new one.
    fn fence(&self, stored: &Stored, row: &mut Row) -> Result<(), Violation> {
        row.locators = self.store.renew(stored).map_err(|error| format!("a put was not renewed: {error}"))?.locators;
        match row.locators.iter().all(|locator| locator.lease.epoch == self.lease_epoch) {
            true => Ok(()),
            false => Err("a put names the epoch before".into()),
        }
    }

    /// The outcome of a commit becomes known.
    fn settle(&mut self) -> Result<(), Violation> {
        let Some((stored, row)) = self.in_doubt.pop() else { return Ok(()) };
        if self.chance(50) {
            self.store.discard(&stored);
            return Ok(());
        }
        self.commit(row)?;
        self.store.named(&stored);
        Ok(())
    }

    fn commit(&mut self, row: Row) -> Result<(), Violation> {
        let geometry = self.profile.geometry;
        for extent in row.extents() {
            let run = extent.run(geometry).map_err(|error| format!("a put answered an extent: {error}"))?;
            let used = self.database.used(extent.segment, geometry);
            if used.iter().any(|other| run.range().start < other.range().end && other.range().start < run.range().end) {
                return Err(format!("{extent} was allocated and is used"));
            }
        }
        let deleted = self.database.change(row.key, Some(row));
        self.deleted(deleted);
        Ok(())
    }

    fn delete(&mut self) {
        let Some(key) = self.database.row(self.random.random::<u32>() as usize).map(|row| row.key) else { return };
        let deleted = self.database.change(key, None);
        self.deleted(deleted);
    }

    fn deleted(&mut self, deleted: Vec<Locator>) {
        if mutation::is(Mutation::FreeBeforeDurable) {
            for locator in deleted {
                let _ = self.store.free(&locator);
            }
        }
    }

    fn make_durable(&mut self) -> Result<(), Violation> {
        self.database.make_durable();
        for locator in self.database.take_freed() {
            // Shared bytes get no freed row. The next lease derives that they are free.
            if self.chance(20) {
                self.has_kept = true;
                continue;
            }
            match self.store.free(&locator) {
                Ok(()) | Err(Error::NotUsed(_)) if mutation::is(Mutation::FreeBeforeDurable) => {}
                result => result.map_err(|error| format!("a free answered {error}"))?,
            }
        }
        Ok(())
    }

    fn drop_put(&mut self) {
        if !self.puts.is_empty() {
            let number = self.random.random_range(0..self.puts.len());
            drop(self.puts.swap_remove(number));
        }
    }

    /// Of a row, or of anything that was ever written.
    fn begin_get(&mut self) {
        let number = self.random.random::<u32>() as usize;
        let must_succeed = self.chance(60);
        let row = if must_succeed { self.database.row(number) } else { self.database.past(number) };
        let Some(row) = row.cloned() else { return };
        let bytes = row.bytes();
        let (a, b) = match self.chance(50) {
            true => (0, bytes),
            false => (self.random.random_range(0..bytes), self.random.random_range(0..bytes)),
        };
        let (at, end) = (a.min(b), a.max(b));
        if let Ok(reader) = self.store.read(&row.locators, at..end) {
            self.gets.push(Get::new(row, at..end, reader, must_succeed));
        }
    }

    fn poll_get(&mut self) -> Result<(), Violation> {
        if self.gets.is_empty() {
            return Ok(());
        }
        let number = self.random.random_range(0..self.gets.len());
        if self.gets[number].next()? {
            self.gets.swap_remove(number);
        }
        Ok(())
    }

    fn flip(&mut self) {
        if !self.chance(30) {
            return;
        }
        let geometry = self.profile.geometry;
        let volume = self.random.random_range(0..self.profile.volumes);
        let block = self.random.random_range(0..self.segments[volume as usize] * geometry.segment_blocks());
        let at = self.random.random_range(0..geometry.block_bytes());
        let bit = self.random.random_range(0..8);
        self.files[volume as usize].flip((HEAD_BYTES + u64::from(block * geometry.block_bytes() + at)) as usize, bit);
        let is_hit = |row: &Row| {
            let extents = row.extents().filter(|extent| extent.segment.volume.0 == volume);
            let mut runs = extents.map(|extent| {
                let first = extent.segment.number * geometry.segment_blocks() + extent.block;
                first..first + extent.run(geometry).unwrap().blocks
            });
            runs.any(|run| run.contains(&block))
        };
        let gets = self.gets.iter_mut().map(|get| &mut get.row);
        let in_doubt = self.in_doubt.iter_mut().map(|(_, row)| row);
        for row in self.database.rows_mut().chain(gets).chain(in_doubt) {
            row.is_damaged |= is_hit(row);
        }
        // Those that are not finished yet do not know their extents.
        self.puts.iter_mut().for_each(|put| put.row.is_damaged = true);
    }

    /// What is not durable is undone, a new timeline begins, and the segments are derived again.
    fn fail_over(&mut self) -> Result<(), Violation> {
        self.database.fail_over();
        self.timeline += 1;
        // A restore hands out ids again.
        self.next_id -= self.random.random_range(0..=self.next_id - 1030);
        // Commits in doubt: the epoch of the lease is another one, so they cannot be done any more. The lease frees their blocks.
        self.in_doubt.clear();
        // What is being put would be refused by the epoch, too.
        self.puts.clear();
        self.lease()
    }

    /// The segments are leased again while puts and gets go on.
    fn lease_anew(&mut self) -> Result<(), Violation> {
        self.end_doubts()?;
        self.lease()
    }

    /// From now on no commit under the epoch before can be done: those in doubt were, or never will be.
    fn end_doubts(&mut self) -> Result<(), Violation> {
        for (_, row) in std::mem::take(&mut self.in_doubt) {
            if self.chance(50) {
                self.commit(row)?;
            }
        }
        Ok(())
    }

    /// All rows as a whole, and each unit of everything that was ever written, as a database does that was restored.
    fn read_all(&mut self) -> Result<(), Violation> {
        self.files.iter().for_each(|file| file.set_faults(Faults::default()));
        for row in self.database.rows() {
            self.read_range(row, 0..row.bytes(), true)?;
        }
        for row in self.database.history() {
            for begin in (0..row.bytes()).step_by(UNIT_BYTES) {
                self.read_range(row, begin..row.bytes().min(begin + UNIT_BYTES as u64), false)?;
            }
        }
        self.files.iter().for_each(|file| file.set_faults(self.profile.faults));
        Ok(())
    }

    fn read_range(&self, row: &Row, range: Range<u64>, must_succeed: bool) -> Result<(), Violation> {
        let reader = self.store.read(&row.locators, range.clone()).map_err(|error| error.to_string())?;
        let mut get = Get::new(row.clone(), range, reader, must_succeed);
        while !get.next()? {}
        Ok(())
    }

    /// Everything comes to its end: then used is what rows name, before a restart and after it.
    fn end(mut self) -> Result<(), Violation> {
        if self.files.iter().any(|file| file.is_down()) {
            self.restart()?;
        }
        self.gets.clear();
        self.puts.clear();
        while (0..self.profile.volumes).any(|volume| self.store.drive(VolumeId(volume))) {}
        while !self.in_doubt.is_empty() {
            self.settle()?;
        }
        self.make_durable()?;
        self.clock.fetch_add(1000, Ordering::Relaxed);
        if !self.has_kept {
            self.check_bitmap()?;
        }
        self.restart()?;
        self.check_bitmap()
    }

    fn check_bitmap(&self) -> Result<(), Violation> {
        for segment in self.segments() {
            let free = self.store.free_runs(segment.volume);
            // A segment that could not be filled is not leased before a restart.
            let Some(free) = free.get(&segment.number) else { continue };
            let free: BTreeSet<_> = free.iter().flat_map(|run| run.range()).collect();
            let named = self.database.used(segment, self.profile.geometry);
            let named: BTreeSet<_> = named.iter().flat_map(|run| run.range()).collect();
            let blocks = 0..self.profile.geometry.segment_blocks() as usize;
            if let Some(block) = blocks.into_iter().find(|block| free.contains(block) == named.contains(block)) {
                let what = if named.contains(&block) { "is free and named" } else { "is neither free nor named" };
                return Err(format!("block {block} of segment {segment} {what}"));
            }
        }
        Ok(())
    }
}

fn store(clock: &Arc<AtomicU64>) -> Store {
    let clock = clock.clone();
    let now = move || Duration::from_millis(clock.load(Ordering::Relaxed));
    Store::inline(Options { reuse_delay: REUSE_DELAY, pin_max: PIN_MAX }, Box::new(now))
}
