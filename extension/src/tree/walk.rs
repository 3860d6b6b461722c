//! Walks a tree in S3's key order, one page at a time.
//!
//! Names have their trailing slash and are compared as bytes, so the depth-first order of rows is the byte order of
//! whole keys. A page seeks its place with one primary-key lookup a level, then reads forward. Its cost depends on the
//! directories that it passes through, not on its position in the namespace. Siblings are read in chunks and kept, so a
//! page of thousands of small directories costs one statement a directory. All statements run under the caller's
//! snapshot.

use std::{cell::RefCell, collections::VecDeque};

use pgrx::{
    datum::DatumWithOid,
    prelude::*,
    spi::{OwnedPreparedStatement, SpiClient, SpiResult},
};

use crate::steps::name::prefix_end;

/// Siblings per statement, at first and at most.
const CHUNK_MIN: i64 = 64;
const CHUNK_MAX: i64 = 1024;
/// So many of the highest character, 4 bytes each, are above every name of at most 255 bytes.
const CHARACTERS_ABOVE_ALL: usize = 64;

/// Two ranges of the primary key, so that the attribute and delta records (`/_ATTR`), which lie between `/` and `0`,
/// are not read. One range a statement: with both, Citus would make a plan for each directory.
const CHILDREN_BELOW: &str = "SELECT name, id, explicit FROM mantle.meta
    WHERE pid = $1 AND name >= $2 AND name < $3 AND name < '/' AND name <> $4 AND ts = 0 ORDER BY name LIMIT $5";
const CHILDREN_ABOVE: &str = "SELECT name, id, explicit FROM mantle.meta
    WHERE pid = $1 AND name >= $2 AND name < $3 AND name >= '0' AND name <> $4 AND ts = 0 ORDER BY name LIMIT $5";
const CHILD: &str = "SELECT name, id, explicit FROM mantle.meta WHERE pid = $1 AND name = $2 AND ts = 0";

thread_local! {
    static STATEMENTS: RefCell<Option<Statements>> = const { RefCell::new(None) };
}

struct Statements {
    children_below: OwnedPreparedStatement,
    children_above: OwnedPreparedStatement,
    child: OwnedPreparedStatement,
}

struct Child {
    name: String,
    id: i64,
    /// `None` for an object.
    explicit: Option<bool>,
}

/// A directory that is being read.
struct Frame {
    pid: i64,
    /// Relative to the walk's root.
    key: String,
    /// Read on with names from here …
    from: String,
    /// … except this one …
    except: String,
    /// … and below this one.
    below: String,
    read: VecDeque<Child>,
    exhausted: bool,
    chunk: i64,
}

impl Frame {
    fn new(pid: i64, key: String) -> Self {
        let below = "\u{10ffff}".repeat(CHARACTERS_ABOVE_ALL);
        let (from, except) = (String::new(), String::new());
        Self { pid, key, from, except, below, read: VecDeque::new(), exhausted: false, chunk: CHUNK_MIN }
    }

    fn only_prefix(mut self, prefix: &str) -> Self {
        self.from = prefix.to_owned();
        if let Some(end) = prefix_end(prefix) {
            self.below = end;
        }
        self
    }

    fn after(&mut self, name: &str) {
        self.from = name.to_owned();
        self.except = name.to_owned();
    }

    fn next(&mut self, reader: &Reader<'_>) -> SpiResult<Option<Child>> {
        if self.read.is_empty() && !self.exhausted {
            self.read = reader.children(self)?;
            self.exhausted = (self.read.len() as i64) < self.chunk;
            self.chunk = (self.chunk * 2).min(CHUNK_MAX);
        }
        let child = self.read.pop_front();
        if let Some(child) = &child {
            self.after(&child.name);
        }
        Ok(child)
    }
}

struct Reader<'a> {
    client: &'a SpiClient<'a>,
    statements: &'a Statements,
}

impl Reader<'_> {
    fn run(&self, statement: &OwnedPreparedStatement, args: &[DatumWithOid<'_>]) -> SpiResult<VecDeque<Child>> {
        pgrx::check_for_interrupts!();
        let table = self.client.select(statement, None, args)?;
        // SAFETY: the result of the statement just run; it is freed once, below, after everything was copied.
        let raw = unsafe { pg_sys::SPI_tuptable };
        let mut children = VecDeque::with_capacity(table.len());
        for row in table {
            if let (Some(name), Some(id)) = (row.get::<String>(1)?, row.get::<i64>(2)?) {
                children.push_back(Child { name, id, explicit: row.get::<bool>(3)? });
            }
        }
        // SAFETY: see above. Without this, a page would hold some kilobytes a statement until its end.
        unsafe { pg_sys::SPI_freetuptable(raw) };
        Ok(children)
    }

    fn children(&self, frame: &Frame) -> SpiResult<VecDeque<Child>> {
        let range = |statement, rows: i64| {
            let (from, below, except) = (frame.from.as_str(), frame.below.as_str(), frame.except.as_str());
            self.run(statement, &[frame.pid.into(), from.into(), below.into(), except.into(), rows.into()])
        };
        let mut children = range(&self.statements.children_below, frame.chunk)?;
        let left = frame.chunk - children.len() as i64;
        if left > 0 {
            children.append(&mut range(&self.statements.children_above, left)?);
        }
        Ok(children)
    }

    fn child(&self, pid: i64, name: &str) -> SpiResult<Option<Child>> {
        Ok(self.run(&self.statements.child, &[pid.into(), name.into()])?.pop_front())
    }
}

/// A key of the page and the place of its row.
struct Found {
    key: String,
    pid: i64,
    name: String,
}

/// The frames at the beginning of a page: first down the directories of the prefix, then down those of `start_after`.
fn seek(
    reader: &Reader<'_>,
    root: i64,
    prefix: &str,
    start_after: Option<&str>,
    page: &mut Vec<Found>,
) -> SpiResult<Vec<Frame>> {
    let after = start_after.filter(|s| *s >= prefix);
    if after.is_some_and(|s| !s.starts_with(prefix)) {
        return Ok(Vec::new());
    }
    let base = prefix.rfind('/').map_or(0, |slash| slash + 1);
    let (mut pid, mut key) = (root, String::new());
    for name in prefix[..base].split_inclusive('/') {
        let Some(child) = reader.child(pid, name)? else { return Ok(Vec::new()) };
        key.push_str(name);
        if key == prefix && child.explicit == Some(true) && after.is_none() {
            page.push(Found { key: key.clone(), pid, name: name.to_owned() });
        }
        pid = child.id;
    }
    let mut frames = vec![Frame::new(pid, key).only_prefix(&prefix[base..])];
    for name in after.map_or("", |s| &s[base..]).split_inclusive('/') {
        let frame = frames.last_mut().expect("never empty");
        frame.after(name);
        if !name.ends_with('/') {
            break;
        }
        let Some(child) = reader.child(frame.pid, name)? else { break };
        let key = format!("{}{name}", frame.key);
        frames.push(Frame::new(child.id, key));
    }
    Ok(frames)
}

fn page(
    reader: &Reader<'_>,
    root: i64,
    prefix: &str,
    start_after: Option<&str>,
    limit: usize,
) -> SpiResult<Vec<Found>> {
    let mut page = Vec::new();
    let mut frames = seek(reader, root, prefix, start_after, &mut page)?;
    while page.len() < limit
        && let Some(frame) = frames.last_mut()
    {
        let Some(child) = frame.next(reader)? else {
            frames.pop();
            continue;
        };
        let key = format!("{}{}", frame.key, child.name);
        if child.explicit != Some(false) {
            page.push(Found { key: key.clone(), pid: frame.pid, name: child.name });
        }
        if child.explicit.is_some() {
            frames.push(Frame::new(child.id, key));
        }
    }
    page.truncate(limit);
    Ok(page)
}

/// Keys of objects and explicit directories below directory `pid`, relative to it, that begin with `prefix` and come
/// after `start_after`. `mantle.list_tree` adds the other columns and sets the planner's options.
#[pg_extern(stable)]
#[allow(clippy::type_complexity)]
fn walk_tree(
    pid: i64,
    prefix: &str,
    start_after: Option<&str>,
    page_keys: i32,
) -> TableIterator<'static, (name!(key, String), name!(pid, i64), name!(name, String))> {
    let found = Spi::connect(|client| {
        STATEMENTS.with_borrow_mut(|statements| -> SpiResult<Vec<Found>> {
            if statements.is_none() {
                let (int8, text) = (PgBuiltInOids::INT8OID.oid(), PgBuiltInOids::TEXTOID.oid());
                *statements = Some(Statements {
                    children_below: client.prepare(CHILDREN_BELOW, &[int8, text, text, text, int8])?.keep(),
                    children_above: client.prepare(CHILDREN_ABOVE, &[int8, text, text, text, int8])?.keep(),
                    child: client.prepare(CHILD, &[int8, text])?.keep(),
                });
            }
            let statements = statements.as_ref().expect("prepared above");
            let reader = Reader { client, statements };
            page(&reader, pid, prefix, start_after, usize::try_from(page_keys).unwrap_or(0))
        })
    });
    let found = found.unwrap_or_else(|e| pgrx::error!("mantle.walk_tree: {e}"));
    TableIterator::new(found.into_iter().map(|f| (f.key, f.pid, f.name)))
}
