//! Gets: reads ranges of a write's bytes, and checks every byte before it returns it. A small object takes one read. A large one is
//! read in pieces, and one piece at a time is in memory.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use bytes::Bytes;
use tokio::task::spawn_blocking;

use super::{Mounted, Store};
use crate::{
    allocator::Written,
    checksum::{SUM_BYTES, UNIT_BYTES},
    error::{Error, Result},
    extent::{HEADER_BYTES, Verifier, head_bytes, units_for},
    locator::Locator,
    place::Extent,
};

/// Most units of one piece: 256 KiB, which is the memory that a read takes. Tests have less, so that small objects come in pieces.
const PIECE_UNITS: u32 = if cfg!(test) { 4 } else { 64 };
/// If at most this many bytes lie between two needed ranges, they are read too, instead of reading twice.
const GAP_BYTES_MAX: usize = if cfg!(test) { 16 } else { 4 << 10 };

/// Bytes behind a piece that are read from the disk together with it, if the read wants them and the piece was in no cache. The
/// kernel reads ahead only where it sees the beginning of a file, or reads one after the other.
const AHEAD_BYTES: u64 = 2 << 20;

/// Keeps an extent's blocks.
struct Pin {
    mounted: Arc<Mounted>,
    written: Written,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.mounted.unpin(self.written);
    }
}

/// A read in progress: pieces of at most 256 KiB.
pub struct Reader {
    store: Store,
    /// What is left: the extents, and which of their bytes.
    rest: VecDeque<(Pin, Range<u32>)>,
    /// The checksums of the first of `rest`, from the unit that comes next.
    table: Option<Bytes>,
}

impl Store {
    /// Prepares a read of a range of the bytes that locators name, one after the other. It reads nothing yet: the first piece tells
    /// whether the bytes are there.
    ///
    /// # Errors
    /// `Invalid` if the range goes beyond the bytes, or a locator beyond its volume; `NotMounted`.
    pub fn read(&self, locators: &[Locator], range: Range<u64>) -> Result<Reader> {
        let of = |locator: &'_ Locator| {
            let generation = locator.generation;
            locator.extents().map(move |extent| (extent, generation)).collect::<Vec<_>>()
        };
        self.read_extents(locators.iter().flat_map(of), range)
    }

    pub(crate) fn read_extents(&self, all: impl IntoIterator<Item = Written>, range: Range<u64>) -> Result<Reader> {
        let (mut rest, mut position) = (VecDeque::new(), 0);
        for written in all {
            let (extent, _) = written;
            let (begin, end) = (position, position + u64::from(extent.length));
            position = end;
            let (from, to) = (range.start.max(begin), range.end.min(end));
            if from >= to {
                continue;
            }
            let mounted = self.mounted(extent.segment.volume)?;
            if !mounted.volume.has_segment(extent.segment.number) {
                return Err(Error::Invalid("an extent is in a segment that the volume does not have"));
            }
            extent.run(mounted.volume.geometry())?;
            mounted.pin(written);
            rest.push_back((Pin { mounted, written }, (from - begin) as u32..(to - begin) as u32));
        }
        if range.start > range.end || range.end > position {
            return Err(Error::Invalid("the range goes beyond the object"));
        }
        Ok(Reader { store: self.clone(), rest, table: None })
    }

    /// Lets the next read of an extent come from the disk. Returns whether its beginning was cached.
    pub(crate) fn forget_cached(&self, extent: Extent) -> Result<bool> {
        let mounted = self.mounted(extent.segment.volume)?;
        let geometry = mounted.volume.geometry();
        extent.run(geometry)?;
        let (file, begin) = (mounted.volume.file(), extent.offset(geometry));
        let was_cached = file.read_cached_at(&mut [0; HEADER_BYTES], begin) == HEADER_BYTES;
        file.forget_cached(begin..begin + head_bytes(extent.length) as u64 + u64::from(extent.length));
        Ok(was_cached)
    }

    /// Reads a piece. `following`: so many bytes behind it are wanted next.
    async fn read_at(&self, mounted: &Arc<Mounted>, at: u64, bytes: usize, following: u64) -> Result<Vec<u8>> {
        let mut buffer = vec![0; bytes];
        let file = mounted.volume.file();
        let done = file.read_cached_at(&mut buffer, at);
        if done == bytes {
            return Ok(buffer);
        }
        if self.0.is_inline {
            file.read_exact_at(&mut buffer[done..], at + done as u64)?;
            return Ok(buffer);
        }
        let file = file.clone();
        let read = spawn_blocking(move || {
            if following > 0 {
                file.will_read(at + done as u64..at + bytes as u64 + following.min(AHEAD_BYTES));
            }
            file.read_exact_at(&mut buffer[done..], at + done as u64)?;
            Ok(buffer)
        });
        read.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic))).map_err(Error::from)
    }
}

impl Reader {
    /// The next piece; `None` at the end. After an error the read is over.
    ///
    /// # Errors
    /// `Foreign`, `Corrupt`: ask the metadata whether it still names these bytes. If not, they were deleted meanwhile. If it does,
    /// they are lost. `Io`.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let Some((pin, range)) = self.rest.front() else { return Ok(None) };
        let ((extent, generation), mounted, range) = (pin.written, pin.mounted.clone(), range.clone());
        let verifier = Verifier::new(extent, mounted.volume.geometry(), generation);
        let units = range.start / UNIT_BYTES as u32..units_for(range.end);
        let now = units.start..units.end.min(units.start + PIECE_UNITS);
        let read = match self.table.take() {
            None => self.read_first(&mounted, &verifier, extent, &units, now.clone()).await,
            Some(table) => self.read_data(&mounted, &verifier, extent, table, &units, now.clone()).await,
        };
        let (table, data) = match read {
            Err(Error::Corrupt { extent, what }) => {
                return Err(self.why(&mounted, &verifier, Error::Corrupt { extent, what }).await);
            }
            read => read?,
        };
        let begin = now.start * UNIT_BYTES as u32;
        let end = range.end.min(begin + data.len() as u32);
        let piece = data.slice((range.start - begin) as usize..(end - begin) as usize);
        if end == range.end {
            self.rest.pop_front();
        } else if let Some((_, rest)) = self.rest.front_mut() {
            rest.start = end;
            self.table = Some(table);
        }
        Ok(Some(piece))
    }

    /// The first piece of an extent, with its header and the checksums of all units that are wanted. Returns the checksums of the
    /// units behind the piece, and the piece.
    async fn read_first(
        &self,
        mounted: &Arc<Mounted>,
        verifier: &Verifier,
        extent: Extent,
        units: &Range<u32>,
        now: Range<u32>,
    ) -> Result<(Bytes, Bytes)> {
        let at = extent.offset(mounted.volume.geometry());
        let table = table_range(units);
        let data = data_range(extent, &now);
        if data.start - table.end + (table.start - HEADER_BYTES) <= GAP_BYTES_MAX {
            let bytes = Bytes::from(self.store.read_at(mounted, at, data.end, following(extent, units, &now)).await?);
            verifier.header(&bytes)?;
            let (table, data) = (bytes.slice(table), bytes.slice(data));
            return check(verifier, now, table, data);
        }
        let (header, table) = if table.start - HEADER_BYTES <= GAP_BYTES_MAX {
            let bytes = Bytes::from(self.store.read_at(mounted, at, table.end, 0).await?);
            (bytes.slice(..HEADER_BYTES), bytes.slice(table))
        } else {
            let header = self.store.read_at(mounted, at, HEADER_BYTES, 0).await?;
            (header.into(), self.store.read_at(mounted, at + table.start as u64, table.len(), 0).await?.into())
        };
        verifier.header(&header)?;
        self.read_data(mounted, verifier, extent, table, units, now).await
    }

    /// A piece whose checksums, and those of what follows, are known.
    async fn read_data(
        &self,
        mounted: &Arc<Mounted>,
        verifier: &Verifier,
        extent: Extent,
        table: Bytes,
        units: &Range<u32>,
        now: Range<u32>,
    ) -> Result<(Bytes, Bytes)> {
        let range = data_range(extent, &now);
        let at = extent.offset(mounted.volume.geometry()) + range.start as u64;
        let data = self.store.read_at(mounted, at, range.len(), following(extent, units, &now)).await?;
        check(verifier, now, table, data.into())
    }

    /// Why bytes do not match: if the header is of another generation now, they belong to that write.
    async fn why(&self, mounted: &Arc<Mounted>, verifier: &Verifier, found: Error) -> Error {
        let Some((pin, _)) = self.rest.front() else { return found };
        let at = pin.written.0.offset(mounted.volume.geometry());
        match self.store.read_at(mounted, at, HEADER_BYTES, 0).await.and_then(|bytes| verifier.header(&bytes)) {
            Err(foreign @ Error::Foreign { .. }) => foreign,
            _ => found,
        }
    }
}

fn check(verifier: &Verifier, now: Range<u32>, mut table: Bytes, data: Bytes) -> Result<(Bytes, Bytes)> {
    let sums = table.split_to(SUM_BYTES * now.len());
    verifier.units(now.start, &sums, &data)?;
    Ok((table, data))
}

/// How many bytes lie between a piece and the end of the units that are wanted.
fn following(extent: Extent, units: &Range<u32>, now: &Range<u32>) -> u64 {
    (data_range(extent, units).end - data_range(extent, now).end) as u64
}

/// Where the checksums of these units are, from the extent's beginning on.
fn table_range(units: &Range<u32>) -> Range<usize> {
    let at = |unit: u32| HEADER_BYTES + SUM_BYTES * unit as usize;
    at(units.start)..at(units.end)
}

/// Where the data of these units is, from the extent's beginning on.
fn data_range(extent: Extent, units: &Range<u32>) -> Range<usize> {
    let begin = head_bytes(extent.length);
    let at = |unit: u32| begin + (unit as usize * UNIT_BYTES).min(extent.length as usize);
    at(units.start)..at(units.end)
}
