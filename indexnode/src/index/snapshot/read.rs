//! Reads a snapshot, and refuses one that is damaged or incomplete.

use std::io::{BufRead, Read, Result};

use mantle_types::{DirectoryId, Lsn, limits::NAME_BYTES_MAX};

use super::{FRAME_BYTES_MAX, Index, Item, MAGIC, MAGIC_BEFORE, SOURCES_MAX, invalid};
use crate::index::{command::SourceId, namespaces::Namespaces, record::Record, tree::Tree};

impl Index {
    /// Checks that a snapshot is complete and all checksums are right, without building the index.
    pub fn check_snapshot(input: &mut impl BufRead) -> Result<()> {
        read_magic(input)?;
        let mut frame = Vec::new();
        while !input.fill_buf()?.is_empty() {
            read_frame(input, &mut frame)?;
        }
        let (mut rest, mut is_ended) = (&frame[..], false);
        while !rest.is_empty() {
            let (item, after) = postcard::take_from_bytes(rest).map_err(|_| invalid("an item is malformed"))?;
            (rest, is_ended) = (after, matches!(item, Item::End { .. }));
        }
        if is_ended { Ok(()) } else { Err(invalid("its end is missing")) }
    }

    /// Reads a snapshot. The hash tables get a random seed.
    pub fn read_snapshot(input: &mut impl Read) -> Result<Self> {
        read_magic(input)?;
        let mut reader = SnapshotReader { index: Self::default(), directories: 0, state: State::Start };
        let mut frame = Vec::new();
        while !matches!(reader.state, State::Ended) {
            read_frame(input, &mut frame)?;
            let mut rest = &frame[..];
            while !rest.is_empty() {
                let (item, after) = postcard::take_from_bytes(rest).map_err(|_| invalid("an item is malformed"))?;
                reader.take(item)?;
                rest = after;
            }
        }
        Ok(reader.index)
    }
}

fn read_magic(input: &mut impl Read) -> Result<()> {
    let mut magic = [0; MAGIC.len()];
    input.read_exact(&mut magic)?;
    if magic != MAGIC && !MAGIC_BEFORE.contains(&magic) {
        return Err(invalid("not one, or of another format version"));
    }
    Ok(())
}

fn read_frame(input: &mut impl Read, frame: &mut Vec<u8>) -> Result<()> {
    let mut word = [0; 4];
    input.read_exact(&mut word)?;
    let length = u32::from_le_bytes(word) as usize;
    if length == 0 || length > FRAME_BYTES_MAX {
        return Err(invalid("a frame's length is out of range"));
    }
    input.read_exact(&mut word)?;
    frame.resize(length, 0);
    input.read_exact(frame)?;
    if crc32fast::hash(frame) != u32::from_le_bytes(word) {
        return Err(invalid("a frame's checksum is wrong"));
    }
    Ok(())
}

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
                    return Err(invalid("two locks collide"));
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
            return Err(invalid("directories are missing"));
        }
        if index.rebuild.is_some() && index.locks.iter().next().is_some() {
            return Err(invalid("locks are held during a rebuild"));
        }
        let is_behind = |(id, lsn): (&SourceId, &Lsn)| index.source(*id).is_some_and(|source| source.applied < *lsn);
        if !index.catch_up.iter().all(is_behind) {
            return Err(invalid("there is nothing that could catch up"));
        }
        Ok(())
    }

    fn take_of_tree(&mut self, item: Item<'_>) -> Result<()> {
        let tree = match self.state {
            State::Serving => self.index.serving.as_mut(),
            State::Rebuild => self.index.rebuild.as_mut(),
            _ => None,
        };
        let tree = tree.ok_or_else(|| invalid("an item is out of place"))?;
        match item {
            Item::Namespaces => tree.namespaces = Some(Namespaces::default()),
            Item::Namespace { ns, state, moves, copied } if copied.len() <= SOURCES_MAX => {
                let of = tree.namespaces.as_mut().ok_or_else(|| invalid("a namespace is out of place"))?;
                of.set(ns, Some(state), moves, copied);
            }
            Item::Source { id, source } => {
                tree.sources.insert(id, source);
            }
            Item::Partial { id, commit_lsn }
                if tree.sources.get(&id).is_some_and(|source| source.applied < commit_lsn) =>
            {
                tree.partial.insert(id, commit_lsn);
            }
            Item::LastSeen { id, last }
                if tree.sources.get(&id).is_some_and(|source| last.lsn().0 <= source.applied.0.saturating_add(1)) =>
            {
                tree.last_seen.insert(id, last);
            }
            Item::Removal { id, removal } if tree.table.get(id).is_none() => {
                tree.removals.removed.insert(id, removal);
            }
            Item::Horizon(horizon) if horizon.positions.len() <= SOURCES_MAX => {
                tree.removals.horizons.push_back(horizon)
            }
            Item::Directory { record, is_displaced } => {
                self.directories += 1;
                restore(tree, &record, is_displaced)?;
            }
            _ => return Err(invalid("an item is out of place")),
        }
        Ok(())
    }
}

fn restore(tree: &mut Tree, record: &Record<'_>, is_displaced: bool) -> Result<()> {
    let Record { pid, name, id, .. } = *record;
    if id == DirectoryId::SUPER_ROOT || name.len() > NAME_BYTES_MAX || tree.known_version(id).is_some() {
        return Err(invalid("a directory's id or name is out of range, or a directory repeats"));
    }
    if tree.table.lookup(pid, name).is_some() != is_displaced {
        return Err(invalid("a place has no occupant, or two"));
    }
    if is_displaced {
        tree.table.put_displaced(record)
    } else {
        tree.table.put(record)
    }
    Ok(())
}
