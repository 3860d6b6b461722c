//! Puts: gathers a client's pieces, allocates, writes. A small object takes one write: header, checksums, data. A large one is
//! written as it arrives: at most [`GATHERED_BYTES`] and one piece of it are in memory.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Mounted, Room, Store};
#[cfg(test)]
use crate::tests::mutation::{self, Mutation};
use crate::{
    allocator::Written,
    checksum::{Sums, UNIT_BYTES},
    error::{Error, Result},
    extent::{EXTENT_BYTES_MAX, Header, head_bytes},
    generation::Generation,
    lane::Job,
    locator::Locator,
    place::{Extent, VolumeId},
};

/// Bytes that are gathered before they are written. Tests have fewer, so that small objects come in several writes.
const GATHERED_BYTES: u64 = if cfg!(test) { 16 << 10 } else { 1 << 20 };

/// Fills the last block of an extent. Blocks have at most 64 KiB.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Bytes to be put.
#[derive(Clone, Copy, Debug)]
pub struct NewBytes {
    /// A generation that nothing else has, or ever had.
    pub generation: Generation,
    /// What the extents' headers say of the object or upload, for whoever repairs a volume without a database.
    pub object: u64,
    /// How many bytes will come, if that is known. Without it a large object has an extent for each MiB.
    pub size: Option<u64>,
}

/// Bytes that are durable.
#[derive(Clone, Debug)]
#[must_use = "the blocks stay reserved until the store is told what became of them"]
pub struct Stored {
    /// Where they are, in their order; none if there are no bytes. Each says the epoch under which its segment was leased when
    /// the blocks were allocated. The transaction that names the bytes checks that it still is.
    pub locators: Vec<Locator>,
}

/// What becomes of a put's blocks when nothing writes to them any more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// They are free: the put was given up, or failed.
    Free,
    /// A write failed: nobody gets these blocks before their segment is leased again.
    SetAside,
    /// The put is done. They stay reserved until the store is told what became of the metadata.
    Keep,
}

/// Blocks of a put that is not done. The put and each of its queued writes hold it.
struct Reserved {
    mounted: Arc<Mounted>,
    written: Vec<Written>,
    fate: Mutex<Fate>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let is_used = match *self.fate.get_mut() {
            Fate::Free => false,
            Fate::SetAside => true,
            Fate::Keep => return,
        };
        let mut allocator = self.mounted.allocator.lock();
        self.written.iter().for_each(|written| allocator.settle(*written, is_used));
    }
}

/// An extent that is being written.
struct Open {
    extent: Extent,
    /// Of its segment's lease.
    epoch: u64,
    /// Its first byte's position in the object.
    position: u64,
    reserved: Arc<Reserved>,
    sums: Sums,
    written: u32,
}

/// A put in progress. Dropped before its end, it leaves nothing.
pub struct Writer {
    store: Store,
    new: NewBytes,
    gathered: VecDeque<Bytes>,
    gathered_bytes: u64,
    received: u64,
    allocated: u64,
    planned: VecDeque<(Extent, u64, Arc<Reserved>)>,
    open: Option<Open>,
    reserved: Vec<Arc<Reserved>>,
    /// Those that are written, with the epochs of their leases.
    extents: Vec<(Extent, u64)>,
}

impl Writer {
    pub(super) fn new(store: Store, new: NewBytes) -> Self {
        Self {
            store,
            new,
            gathered: VecDeque::new(),
            gathered_bytes: 0,
            received: 0,
            allocated: 0,
            planned: VecDeque::new(),
            open: None,
            reserved: Vec::new(),
            extents: Vec::new(),
        }
    }

    /// Takes the next piece, and writes if enough is gathered.
    ///
    /// # Errors
    /// `Full`: the piece is taken, and once there is more room a call with an empty piece goes on. `ReadOnly`, `Io`; `Size` if more
    /// comes than was announced: the put is over, drop it.
    pub async fn write(&mut self, piece: Bytes) -> Result<()> {
        self.received += piece.len() as u64;
        if let Some(announced) = self.new.size.filter(|size| *size < self.received) {
            return Err(Error::Size { announced });
        }
        if !piece.is_empty() {
            self.gathered_bytes += piece.len() as u64;
            self.gathered.push_back(piece);
        }
        // What is announced to be small is written once, at the end.
        if self.gathered_bytes >= GATHERED_BYTES && self.new.size != Some(self.received) {
            self.write_gathered(false).await?;
        }
        Ok(())
    }

    /// Writes the rest. When this returns, all bytes are on the disk.
    ///
    /// # Errors
    /// As of [`Writer::write`], and after `Full` it may be called again; `Size` if fewer bytes came than were announced.
    pub async fn finish(&mut self) -> Result<Stored> {
        if let Some(announced) = self.new.size.filter(|size| *size != self.received) {
            return Err(Error::Size { announced });
        }
        self.write_gathered(true).await?;
        self.decide(Fate::Keep);
        Ok(Stored { locators: Locator::of(self.new.generation, &self.extents) })
    }

    /// Writes what is gathered. The last time it also flushes every volume that has some of the object.
    async fn write_gathered(&mut self, is_last: bool) -> Result<()> {
        let (mut flushed, mut flushing) = (Vec::new(), None);
        while self.gathered_bytes > 0 {
            let mut open = self.next_open()?;
            let wanted = u64::from(open.extent.length - open.written).min(self.gathered_bytes);
            let pieces = self.take(wanted);
            let is_end = is_last && self.gathered_bytes == 0;
            let waits = submit(&mut open, self.new, pieces, is_end);
            if open.written < open.extent.length {
                self.open = Some(open);
            } else {
                self.extents.push((open.extent, open.epoch));
            }
            if is_end {
                (flushed, flushing) = (waits, self.extents.last().map(|(extent, _)| extent.segment.volume));
            } else {
                for wait in waits {
                    self.done(wait).await?;
                }
            }
        }
        if is_last {
            flushed.extend(self.flush_others(flushing));
            for wait in flushed {
                self.done(wait).await?;
            }
        }
        Ok(())
    }

    /// The extent that is being written, or the next one.
    fn next_open(&mut self) -> Result<Open> {
        if let Some(open) = self.open.take() {
            return Ok(open);
        }
        if self.planned.is_empty() {
            self.plan()?;
        }
        let (extent, epoch, reserved) = self.planned.pop_front().ok_or(Error::Full { bytes: self.gathered_bytes })?;
        let position = self.extents.iter().map(|(extent, _)| u64::from(extent.length)).sum();
        let sums = Sums::new(extent.seed(reserved.mounted.volume.geometry(), self.new.generation));
        Ok(Open { extent, epoch, position, reserved, sums, written: 0 })
    }

    /// Allocates for what is gathered, or for more if it is known to come.
    fn plan(&mut self) -> Result<()> {
        let rest = self.new.size.map_or(self.gathered_bytes, |size| size - self.allocated);
        let mut bytes = rest.min(EXTENT_BYTES_MAX.into());
        let Room { mounted, extents } = loop {
            match self.store.allocate(bytes, self.new.generation) {
                // No volume has so much: a part of it, and the rest elsewhere.
                Err(Error::Full { .. }) if bytes > UNIT_BYTES as u64 => {
                    bytes = (bytes / 2).next_multiple_of(UNIT_BYTES as u64);
                }
                result => break result?,
            }
        };
        self.allocated += bytes;
        let generation = self.new.generation;
        let written = extents.iter().map(|(extent, _)| (*extent, generation)).collect();
        let reserved = Arc::new(Reserved { mounted, written, fate: Mutex::new(Fate::Free) });
        self.planned.extend(extents.into_iter().map(|(extent, epoch)| (extent, epoch, reserved.clone())));
        self.reserved.push(reserved);
        Ok(())
    }

    /// Takes this many bytes of what is gathered.
    fn take(&mut self, bytes: u64) -> Vec<Bytes> {
        let (mut taken, mut rest) = (Vec::new(), bytes);
        while rest > 0 {
            let Some(mut piece) = self.gathered.pop_front() else { break };
            if piece.len() as u64 > rest {
                self.gathered.push_front(piece.split_off(rest as usize));
            }
            rest -= piece.len() as u64;
            taken.push(piece);
        }
        self.gathered_bytes -= bytes;
        taken
    }

    /// Flushes the volumes of the object, except one whose last write is flushed anyway.
    fn flush_others(&self, flushing: Option<VolumeId>) -> Vec<oneshot::Receiver<Result<()>>> {
        let others = self.reserved.iter().map(|reserved| (reserved.mounted.volume.id(), &reserved.mounted));
        let others: BTreeMap<_, _> = others.filter(|(id, _)| Some(*id) != flushing).collect();
        let flush = |mounted: &&Arc<Mounted>| {
            let (done, wait) = oneshot::channel();
            mounted.lane.submit(Job { at: 0, pieces: Vec::new(), flush: true, done, reserved: None });
            wait
        };
        others.values().map(flush).collect()
    }

    fn decide(&self, fate: Fate) {
        self.reserved.iter().for_each(|reserved| *reserved.fate.lock() = fate);
    }

    async fn done(&self, wait: oneshot::Receiver<Result<()>>) -> Result<()> {
        let result = wait.await.unwrap_or_else(|_| Err(std::io::Error::other("the volume was removed").into()));
        if matches!(result, Err(Error::Io(_))) {
            self.decide(Fate::SetAside);
        }
        result
    }
}

/// Hands the next data of an extent to its volume, and header and checksums when it is whole.
fn submit(open: &mut Open, new: NewBytes, pieces: Vec<Bytes>, flush: bool) -> Vec<oneshot::Receiver<Result<()>>> {
    let Open { extent, position, reserved, sums, written, .. } = open;
    let mounted = reserved.mounted.clone();
    let geometry = mounted.volume.geometry();
    let (begin, head) = (extent.offset(geometry), head_bytes(extent.length));
    pieces.iter().for_each(|piece| sums.update(piece));
    let at = begin + head as u64 + u64::from(*written);
    let is_first = *written == 0;
    *written += pieces.iter().map(|piece| piece.len() as u32).sum::<u32>();

    let mut waits = Vec::new();
    let mut send = |at, pieces| {
        let (done, wait) = oneshot::channel();
        let reserved: Option<Arc<dyn Send + Sync>> = Some(reserved.clone());
        #[cfg(test)]
        let reserved = reserved.filter(|_| !mutation::is(Mutation::FreeWhileWriting));
        mounted.lane.submit(Job { at, pieces, flush, done, reserved });
        waits.push(wait);
    };
    if *written < extent.length {
        send(at, pieces);
        return waits;
    }
    let header = Header { generation: new.generation, object: new.object, position: *position, length: extent.length };
    let table = std::mem::replace(sums, Sums::new(extent.seed(geometry, new.generation))).finish();
    let header = Bytes::from([&header.encode()[..], &table].concat());
    let taken = head + extent.length as usize;
    let padding = Bytes::from_static(&ZEROS[..taken.next_multiple_of(geometry.block_bytes() as usize) - taken]);
    if is_first {
        send(begin, [vec![header], pieces, vec![padding]].concat());
    } else {
        send(begin, vec![header]);
        send(at, [pieces, vec![padding]].concat());
    }
    waits
}
