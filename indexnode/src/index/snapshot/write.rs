//! Writes a snapshot in parts while the index changes. At its beginning it copies everything except the directories;
//! later it writes each directory as it was at the beginning (see `before_images`). A part reads a few shards; between
//! two parts the index can change.

use std::{
    collections::VecDeque,
    io::{Error, Result, Write},
    sync::{Arc, atomic::Ordering},
};

use mantle_types::message::DirectoryRecord;

use super::{FRAME_BYTES, Index, Item, MAGIC};
use crate::index::{before_images::TableScan, sharded_table::SHARDS, tree::Tree};

/// The outcome of writing a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// More parts follow.
    Written,
    /// It was the last part.
    Last,
    /// The index was replaced (a rebuild ended, or a snapshot was installed). Begin a new snapshot.
    Superseded,
}

/// Selects one of an index's trees.
type Select = fn(&Index) -> Option<&Tree>;

/// Writes the snapshot of an index as it was at [`Index::begin_snapshot`].
pub struct SnapshotWriter {
    frames: Frames,
    trees: VecDeque<TreeWriter>,
    directories: u64,
}

/// The unwritten rest of a tree.
struct TreeWriter {
    select: Select,
    /// Frames of everything except the directories.
    head: Vec<u8>,
    /// `None` if the index cannot change meanwhile.
    scan: Option<Arc<TableScan>>,
    shard: usize,
    /// Displaced directories, to be written after all others.
    displaced: Vec<DirectoryRecord>,
}

impl Index {
    /// Begins a snapshot of the index as it is now. The index may change between the parts that
    /// [`SnapshotWriter::write_part`] writes. Drop the writer soon: before-images of all changes are kept until then.
    pub fn begin_snapshot(&mut self) -> Result<SnapshotWriter> {
        let serving = self.serving.as_mut().map(|tree| tree.table.begin_scan());
        let rebuild = self.rebuild.as_mut().map(|tree| tree.table.begin_scan());
        SnapshotWriter::new(self, [serving, rebuild])
    }

    /// Writes a whole snapshot at once.
    pub fn write_snapshot(&self, out: &mut impl Write) -> Result<()> {
        let mut writer = SnapshotWriter::new(self, [None, None])?;
        while writer.write_part(self, usize::MAX, out)? == Part::Written {}
        Ok(())
    }
}

impl SnapshotWriter {
    fn new(index: &Index, [serving, rebuild]: [Option<Arc<TableScan>>; 2]) -> Result<Self> {
        let mut frames = Frames { closed: MAGIC.to_vec(), open: Vec::new() };
        let catch_up = index.catch_up.iter().map(|(source, lsn)| (*source, *lsn)).collect();
        frames.put(&Item::Head { epoch: index.epoch, catch_up })?;
        for lock in index.locks.iter() {
            frames.put(&Item::Lock(lock.clone()))?;
        }
        let all: [(Item<'_>, Select, _); 2] = [
            (Item::Serving, |index| index.serving.as_ref(), serving),
            (Item::Rebuild, |index| index.rebuild.as_ref(), rebuild),
        ];
        let mut trees = VecDeque::new();
        for (item, select, scan) in all {
            if let Some(tree) = select(index) {
                trees.push_back(TreeWriter { select, head: head(&item, tree)?, scan, shard: 0, displaced: Vec::new() });
            }
        }
        Ok(Self { frames, trees, directories: 0 })
    }

    /// Writes the next shards, until at least `directories_max` directories are written. `index` must not change meanwhile.
    pub fn write_part(&mut self, index: &Index, directories_max: usize, out: &mut impl Write) -> Result<Part> {
        let part = match self.trees.front_mut() {
            None => {
                self.frames.put(&Item::End { directories: self.directories })?;
                self.frames.close();
                Part::Last
            }
            Some(tree) => {
                let Some(directories) = tree.write_part(index, directories_max, &mut self.frames)? else {
                    return Ok(Part::Superseded);
                };
                self.directories += directories;
                if tree.shard == SHARDS {
                    self.trees.pop_front();
                }
                Part::Written
            }
        };
        out.write_all(&self.frames.closed)?;
        self.frames.closed.clear();
        Ok(part)
    }
}

impl TreeWriter {
    /// Returns the number of written directories. `None`: the tree was replaced.
    fn write_part(&mut self, index: &Index, directories_max: usize, frames: &mut Frames) -> Result<Option<u64>> {
        let table = (self.select)(index).map(|tree| &tree.table);
        let Some(table) = table.filter(|table| self.scan.as_ref().is_none_or(|scan| table.is_scanned_by(scan))) else {
            return Ok(None);
        };
        if self.shard == 0 {
            frames.append(std::mem::take(&mut self.head));
        }
        let mut directories = 0;
        while self.shard < SHARDS && directories < directories_max {
            for (record, is_displaced) in table.records_of_shard(self.shard, self.scan.as_ref()) {
                directories += 1;
                if is_displaced {
                    self.displaced.push(record.to_message());
                } else {
                    frames.put(&Item::Directory { record, is_displaced })?;
                }
            }
            self.shard += 1;
            if let Some(scan) = &self.scan {
                scan.shards_scanned.store(self.shard, Ordering::Relaxed);
            }
        }
        if self.shard == SHARDS {
            for record in &self.displaced {
                frames.put(&Item::Directory { record: record.into(), is_displaced: true })?;
            }
        }
        Ok(Some(directories as u64))
    }
}

fn head(first: &Item<'_>, tree: &Tree) -> Result<Vec<u8>> {
    let mut frames = Frames::default();
    frames.put(first)?;
    if let Some(namespaces) = &tree.namespaces {
        frames.put(&Item::Namespaces)?;
        for (ns, state, moves, copied) in namespaces.iter() {
            frames.put(&Item::Namespace { ns, state, moves, copied: copied.to_vec() })?;
        }
    }
    for (&id, &source) in &tree.sources {
        frames.put(&Item::Source { id, source })?;
    }
    for (&id, &commit_lsn) in &tree.partial {
        frames.put(&Item::Partial { id, commit_lsn })?;
    }
    for (&id, &last) in &tree.last_seen {
        frames.put(&Item::LastSeen { id, last })?;
    }
    for (&id, &removal) in &tree.removals.removed {
        frames.put(&Item::Removal { id, removal })?;
    }
    for horizon in &tree.removals.horizons {
        frames.put(&Item::Horizon(horizon.clone()))?;
    }
    frames.close();
    Ok(frames.closed)
}

#[derive(Default)]
struct Frames {
    closed: Vec<u8>,
    open: Vec<u8>,
}

impl Frames {
    fn put(&mut self, item: &Item<'_>) -> Result<()> {
        self.open = postcard::to_extend(item, std::mem::take(&mut self.open)).map_err(Error::other)?;
        if self.open.len() >= FRAME_BYTES {
            self.close();
        }
        Ok(())
    }

    fn append(&mut self, frames: Vec<u8>) {
        self.close();
        self.closed.extend(frames);
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.closed.extend((self.open.len() as u32).to_le_bytes());
            self.closed.extend(crc32fast::hash(&self.open).to_le_bytes());
            self.closed.append(&mut self.open);
        }
    }
}
