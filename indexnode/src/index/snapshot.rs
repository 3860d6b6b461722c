//! The snapshot of an index: everything that applying later entries depends on, as a stream of checked frames.
//!
//! Layout: 8 bytes magic and format version; then frames of length (4 bytes LE), CRC-32 of the payload (4 bytes LE) and
//! payload: items in postcard encoding, whole items only. The last item says how many directories there were. Reading
//! holds one frame beside the index it builds, allocates no more than a frame says and holds, and never panics.
//! Occupants come before displaced directories, so that each finds its place as it was.

use std::{
    hash::RandomState,
    io::{Error, ErrorKind, Read, Result, Write},
};

use mantle_types::{DirectoryId, Epoch, Lsn, NamespaceId, PartitionId, Permission, limits::NAME_BYTES_MAX};
use serde::{Deserialize, Serialize};

use super::{
    Index,
    command::{Source, SourceId, Standing},
    locks::Lock,
    namespaces::Namespaces,
    removed::{Horizon, Removal},
    table::Record,
    tree::Tree,
};

/// No format's number is one bit away from another's: a damaged header is refused, not read as the other format.
const MAGIC: [u8; 8] = *b"MTLIDX\x00\x04";
/// Before groups had namespaces; the same, but for the items that name them.
const MAGIC_OLD: [u8; 8] = *b"MTLIDX\x00\x02";
/// A frame is written out when it has grown to this.
const FRAME_BYTES: usize = 64 << 10;
/// No frame is larger: items are far smaller than the difference.
const FRAME_BYTES_MAX: usize = 1 << 20;
/// Deepest list in one item: the sources of a group.
const SOURCES_MAX: usize = 4096;

#[derive(Serialize, Deserialize)]
enum Item<'a> {
    Head {
        epoch: Epoch,
        catch_up: Vec<(SourceId, Lsn)>,
    },
    Lock(Lock),
    /// The items that follow are of the served tree.
    Serving,
    /// The items that follow are of an unfinished rebuild.
    Rebuild,
    Source {
        id: SourceId,
        source: Source,
    },
    Removal {
        id: DirectoryId,
        removal: Removal,
    },
    Horizon(Horizon),
    #[serde(borrow)]
    Directory(Entry<'a>),
    End {
        directories: u64,
    },
    /// The tree is not of all namespaces, but of those that follow.
    Namespaces,
    Namespace {
        ns: NamespaceId,
        standing: Standing,
        moves: u32,
        copied: Vec<(SourceId, Lsn)>,
    },
}

#[derive(Serialize, Deserialize)]
struct Entry<'a> {
    pid: PartitionId,
    name: &'a str,
    id: DirectoryId,
    version: u64,
    permission: Permission,
    is_displaced: bool,
}

fn bad(why: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("index snapshot: {why}"))
}

impl Index {
    /// Writes the whole state. Reads the index only; a shell that must not hold up applying clones or chunks around it.
    pub fn write_snapshot(&self, out: &mut impl Write) -> Result<()> {
        out.write_all(&MAGIC)?;
        let mut frames = FrameWriter { out, frame: Vec::with_capacity(FRAME_BYTES + 1024) };
        let catch_up = self.catch_up.iter().map(|(source, lsn)| (*source, *lsn)).collect();
        frames.put(&Item::Head { epoch: self.epoch, catch_up })?;
        for lock in self.locks.iter() {
            frames.put(&Item::Lock(lock.clone()))?;
        }
        let mut directories = 0;
        if let Some(tree) = &self.serving {
            frames.put(&Item::Serving)?;
            directories += frames.put_tree(tree)?;
        }
        if let Some(tree) = &self.rebuild {
            frames.put(&Item::Rebuild)?;
            directories += frames.put_tree(tree)?;
        }
        frames.put(&Item::End { directories })?;
        frames.flush()
    }

    /// Reads what [`Self::write_snapshot`] wrote; its hash tables get a fresh seed.
    pub fn read_snapshot(input: &mut impl Read) -> Result<Self> {
        Self::read_snapshot_seeded(input, RandomState::new())
    }

    /// The same, with a given seed.
    pub fn read_snapshot_seeded(input: &mut impl Read, seed: RandomState) -> Result<Self> {
        let mut magic = [0; MAGIC.len()];
        input.read_exact(&mut magic)?;
        if magic != MAGIC && magic != MAGIC_OLD {
            return Err(bad("not one, or of another format version"));
        }
        let mut reader = SnapshotReader { index: Self::with_seed(seed), directories: 0, state: State::Start };
        let mut frame = Vec::new();
        while !matches!(reader.state, State::Ended) {
            read_frame(input, &mut frame)?;
            let mut rest = &frame[..];
            while !rest.is_empty() {
                let (item, after) = postcard::take_from_bytes(rest).map_err(|_| bad("an item is malformed"))?;
                reader.take(item)?;
                rest = after;
            }
        }
        Ok(reader.index)
    }
}

struct FrameWriter<'a, W: Write> {
    out: &'a mut W,
    frame: Vec<u8>,
}

impl<W: Write> FrameWriter<'_, W> {
    fn put(&mut self, item: &Item<'_>) -> Result<()> {
        let frame = std::mem::take(&mut self.frame);
        self.frame = postcard::to_extend(item, frame).map_err(Error::other)?;
        if self.frame.len() >= FRAME_BYTES { self.flush() } else { Ok(()) }
    }

    fn put_tree(&mut self, tree: &Tree) -> Result<u64> {
        if let Some(namespaces) = &tree.namespaces {
            self.put(&Item::Namespaces)?;
            for (ns, standing, moves, copied) in namespaces.iter() {
                self.put(&Item::Namespace { ns, standing, moves, copied: copied.to_vec() })?;
            }
        }
        for (&id, &source) in &tree.sources {
            self.put(&Item::Source { id, source })?;
        }
        for (&id, &removal) in &tree.removed.removals {
            self.put(&Item::Removal { id, removal })?;
        }
        for horizon in &tree.removed.horizons {
            self.put(&Item::Horizon(horizon.clone()))?;
        }
        for (r, _) in tree.table.records().filter(|(_, is_displaced)| !is_displaced) {
            self.put(&entry(&r, false))?;
        }
        for r in tree.table.displaced_records() {
            self.put(&entry(&r, true))?;
        }
        Ok(tree.table.len() as u64)
    }

    fn flush(&mut self) -> Result<()> {
        if self.frame.is_empty() {
            return Ok(());
        }
        self.out.write_all(&(self.frame.len() as u32).to_le_bytes())?;
        self.out.write_all(&crc32fast::hash(&self.frame).to_le_bytes())?;
        self.out.write_all(&self.frame)?;
        self.frame.clear();
        Ok(())
    }
}

fn entry<'a>(r: &Record<'a>, is_displaced: bool) -> Item<'a> {
    Item::Directory(Entry {
        pid: r.pid,
        name: r.name,
        id: r.id,
        version: r.version,
        permission: r.permission,
        is_displaced,
    })
}

fn read_frame(input: &mut impl Read, frame: &mut Vec<u8>) -> Result<()> {
    let mut word = [0; 4];
    input.read_exact(&mut word)?;
    let length = u32::from_le_bytes(word) as usize;
    if length == 0 || length > FRAME_BYTES_MAX {
        return Err(bad("a frame's length is out of range"));
    }
    input.read_exact(&mut word)?;
    frame.resize(length, 0);
    input.read_exact(frame)?;
    if crc32fast::hash(frame) != u32::from_le_bytes(word) {
        return Err(bad("a frame's checksum is wrong"));
    }
    Ok(())
}

/// What may come next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    Locks,
    Serving,
    Rebuild,
    Ended,
}

struct SnapshotReader {
    index: Index,
    directories: u64,
    state: State,
}

impl SnapshotReader {
    fn take(&mut self, item: Item<'_>) -> Result<()> {
        match (self.state, item) {
            (State::Start, Item::Head { epoch, catch_up }) => {
                self.index.epoch = epoch;
                self.index.catch_up = catch_up.into_iter().collect();
                self.state = State::Locks;
            }
            (State::Locks, Item::Lock(lock)) => {
                if !self.index.locks.insert(lock) {
                    return Err(bad("two locks collide"));
                }
            }
            (State::Locks, Item::Serving) => {
                self.index.serving = Some(Tree::new(self.index.seed.clone()));
                self.state = State::Serving;
            }
            (State::Locks | State::Serving, Item::Rebuild) => {
                self.index.rebuild = Some(Tree::new(self.index.seed.clone()));
                self.state = State::Rebuild;
            }
            (State::Locks | State::Serving | State::Rebuild, Item::End { directories }) => {
                self.check(directories)?;
                self.state = State::Ended;
            }
            (_, item) => return self.take_of_tree(item),
        }
        Ok(())
    }

    fn check(&self, directories: u64) -> Result<()> {
        let index = &self.index;
        if directories != self.directories {
            return Err(bad("directories are missing"));
        }
        if index.rebuild.is_some() && index.locks.iter().next().is_some() {
            return Err(bad("locks are held during a rebuild"));
        }
        let is_behind = |(id, lsn): (&SourceId, &Lsn)| index.source(*id).is_some_and(|source| source.applied < *lsn);
        if !index.catch_up.iter().all(is_behind) {
            return Err(bad("there is nothing that could catch up"));
        }
        Ok(())
    }

    fn take_of_tree(&mut self, item: Item<'_>) -> Result<()> {
        let tree = match self.state {
            State::Serving => self.index.serving.as_mut(),
            State::Rebuild => self.index.rebuild.as_mut(),
            _ => None,
        };
        let tree = tree.ok_or_else(|| bad("an item stands where it may not"))?;
        match item {
            Item::Namespaces => tree.namespaces = Some(Namespaces::default()),
            Item::Namespace { ns, standing, moves, copied } if copied.len() <= SOURCES_MAX => {
                let of = tree.namespaces.as_mut().ok_or_else(|| bad("a namespace stands where it may not"))?;
                match standing {
                    Standing::Serving => of.serve(ns, moves),
                    standing => of.set(ns, Some(standing), copied),
                }
            }
            Item::Source { id, source } => {
                tree.sources.insert(id, source);
            }
            Item::Removal { id, removal } if tree.table.get(id).is_none() => {
                tree.removed.removals.insert(id, removal);
            }
            Item::Horizon(horizon) if horizon.positions.len() <= SOURCES_MAX => {
                tree.removed.horizons.push_back(horizon)
            }
            Item::Directory(entry) => {
                self.directories += 1;
                restore(tree, &entry)?;
            }
            _ => return Err(bad("an item stands where it may not")),
        }
        Ok(())
    }
}

fn restore(tree: &mut Tree, e: &Entry<'_>) -> Result<()> {
    let record = Record { pid: e.pid, name: e.name, id: e.id, version: e.version, permission: e.permission };
    if e.id == DirectoryId::SUPER_ROOT || e.name.len() > NAME_BYTES_MAX || tree.known_version(e.id).is_some() {
        return Err(bad("a directory's id or name is out of range, or stands twice"));
    }
    if tree.table.lookup(e.pid, e.name).is_some() != e.is_displaced {
        return Err(bad("a place has no occupant, or two"));
    }
    if e.is_displaced {
        tree.table.put_displaced(&record)
    } else {
        tree.table.put(&record)
    }
    Ok(())
}
