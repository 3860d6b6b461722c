//! Walks a tree in S3's key order, one page at a time.
//!
//! Names have their trailing slash and are compared as bytes, so the depth-first order of rows is the byte order of
//! whole keys. The walk does not enter a directory that the caller may not both read and search; it reads the
//! permission in the directory's own row. A page finds its start with one primary-key lookup a level, then reads
//! forward. Its cost depends on the directories that it passes through, not on its position in the namespace. Siblings
//! are read in chunks and kept, so a page of thousands of small directories costs one statement a directory. All
//! statements run under the caller's snapshot.

use std::{collections::VecDeque, thread::LocalKey};

use mantle_types::{Caller, Permission};
use pgrx::prelude::*;

use crate::{
    postgres::{
        row::{Value, values},
        saved_plan::SavedPlan,
    },
    steps::{
        access::permission,
        name::{above_all_names, prefix_end},
    },
};

/// Siblings per statement, at first and at most.
const CHUNK_MIN: i64 = 64;
const CHUNK_MAX: i64 = 1024;

const RANGE: &[pg_sys::Oid] = &[pg_sys::INT8OID, pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::INT8OID];

thread_local! {
    // Two ranges of the primary key, so that the attribute and delta records (`/_ATTR`), which lie between `/` and `0`,
    // are not read. One range a statement: with both, Citus would make a plan for each directory.
    static CHILDREN_BELOW: SavedPlan = const { SavedPlan::new(
        c"SELECT name, id, explicit, owner, grp, mode FROM mantle.meta
           WHERE pid = $1 AND name >= $2 AND name < $3 AND name < '/' AND name <> $4 AND ts = 0 ORDER BY name LIMIT $5", RANGE) };
    static CHILDREN_ABOVE: SavedPlan = const { SavedPlan::new(
        c"SELECT name, id, explicit, owner, grp, mode FROM mantle.meta
           WHERE pid = $1 AND name >= $2 AND name < $3 AND name >= '0' AND name <> $4 AND ts = 0 ORDER BY name LIMIT $5", RANGE) };
    static FIRST_BELOW: SavedPlan = const { SavedPlan::new(
        c"SELECT name, id, explicit, owner, grp, mode FROM mantle.meta WHERE pid = $1 AND name < '/' AND ts = 0 ORDER BY name LIMIT 1",
        &[pg_sys::INT8OID]) };
    static FIRST_ABOVE: SavedPlan = const { SavedPlan::new(
        c"SELECT name, id, explicit, owner, grp, mode FROM mantle.meta WHERE pid = $1 AND name >= '0' AND ts = 0 ORDER BY name LIMIT 1",
        &[pg_sys::INT8OID]) };
    static CHILD: SavedPlan = const { SavedPlan::new(
        c"SELECT name, id, explicit, owner, grp, mode FROM mantle.meta WHERE pid = $1 AND name = $2 AND ts = 0",
        &[pg_sys::INT8OID, pg_sys::TEXTOID]) };
}

struct Child {
    name: String,
    id: i64,
    /// `None` for an object.
    explicit: Option<bool>,
    permission: Permission,
}

/// Who walks.
enum Walker {
    /// Enters every directory.
    Anybody,
    Caller(Caller),
}

impl Walker {
    fn may_enter(&self, directory: &Child) -> bool {
        match self {
            Self::Anybody => true,
            Self::Caller(caller) => directory.permission.may_list(caller),
        }
    }
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
        let (from, except) = (String::new(), String::new());
        Self {
            pid,
            key,
            from,
            except,
            below: above_all_names(),
            read: VecDeque::new(),
            exhausted: false,
            chunk: CHUNK_MIN,
        }
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

    fn next(&mut self) -> Option<Child> {
        if self.read.is_empty() && !self.exhausted {
            self.read = self.children();
            self.exhausted = (self.read.len() as i64) < self.chunk;
            self.chunk = (self.chunk * 2).min(CHUNK_MAX);
        }
        let child = self.read.pop_front()?;
        self.after(&child.name);
        Some(child)
    }

    fn children(&self) -> VecDeque<Child> {
        let range = |statement, rows: i64| {
            run(statement, &values![self.pid, self.from.as_str(), self.below.as_str(), self.except.as_str(), rows])
        };
        let mut children = range(&CHILDREN_BELOW, self.chunk);
        let left = self.chunk - children.len() as i64;
        if left > 0 {
            children.append(&mut range(&CHILDREN_ABOVE, left));
        }
        children
    }
}

fn run(statement: &'static LocalKey<SavedPlan>, arguments: &[Value]) -> VecDeque<Child> {
    let children = statement.with(|s| {
        s.stable_rows(arguments, |row| {
            let permission = permission(row.get(4), row.get(5), row.get(6));
            Some(Child { name: row.get(1)?, id: row.get(2)?, explicit: row.get(3), permission })
        })
    });
    children.into_iter().flatten().collect()
}

fn child(pid: i64, name: &str) -> Option<Child> {
    run(&CHILD, &values![pid, name]).pop_front()
}

/// A key of the page and the place of its row.
struct Found {
    key: String,
    pid: i64,
    name: String,
}

/// The frames at the beginning of a page: first down the directories of the prefix, then down those of `start_after`.
fn seek(root: i64, prefix: &str, start_after: Option<&str>, walker: &Walker, page: &mut Vec<Found>) -> Vec<Frame> {
    let after = start_after.filter(|s| *s >= prefix);
    if after.is_some_and(|s| !s.starts_with(prefix)) {
        return Vec::new();
    }
    let base = prefix.rfind('/').map_or(0, |slash| slash + 1);
    let (mut pid, mut key) = (root, String::new());
    for name in prefix[..base].split_inclusive('/') {
        let Some(child) = child(pid, name) else { return Vec::new() };
        key.push_str(name);
        if key == prefix && child.explicit == Some(true) && after.is_none() {
            page.push(Found { key: key.clone(), pid, name: name.to_owned() });
        }
        if !walker.may_enter(&child) {
            return Vec::new();
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
        let Some(child) = child(frame.pid, name).filter(|child| walker.may_enter(child)) else { break };
        let key = format!("{}{name}", frame.key);
        frames.push(Frame::new(child.id, key));
    }
    frames
}

fn page(root: i64, prefix: &str, start_after: Option<&str>, limit: usize, walker: &Walker) -> Vec<Found> {
    let mut page = Vec::new();
    let mut frames = seek(root, prefix, start_after, walker, &mut page);
    while page.len() < limit
        && let Some(frame) = frames.last_mut()
    {
        let Some(child) = frame.next() else {
            frames.pop();
            continue;
        };
        let key = format!("{}{}", frame.key, child.name);
        let is_entered = child.explicit.is_some() && walker.may_enter(&child);
        if child.explicit != Some(false) {
            page.push(Found { key: key.clone(), pid: frame.pid, name: child.name });
        }
        if is_entered {
            frames.push(Frame::new(child.id, key));
        }
    }
    page.truncate(limit);
    page
}

/// Whether an object or an explicit directory is below directory `pid`. Call it by `mantle.list_filled` only, which sets the
/// planner's options.
#[pg_extern(stable)]
fn holds_key(pid: i64) -> bool {
    Spi::connect(|_| {
        let first =
            run(&FIRST_BELOW, &values![pid]).pop_front().or_else(|| run(&FIRST_ABOVE, &values![pid]).pop_front());
        match first {
            // It holds directories that may be empty.
            Some(Child { explicit: Some(false), .. }) => !page(pid, "", None, 1, &Walker::Anybody).is_empty(),
            first => first.is_some(),
        }
    })
}

/// Keys of objects and explicit directories below directory `pid`, relative to it, that begin with `prefix` and come
/// after `start_after`, without those below another directory that the caller may not read and search. Without a caller that
/// can be read, the walker has the permissions of others. Call it by `mantle.list_tree` only, which adds the other columns and sets the planner's options:
/// a session keeps the plan of its first call.
#[pg_extern(stable)]
#[allow(clippy::type_complexity)]
fn walk_tree(
    pid: i64,
    prefix: &str,
    start_after: Option<&str>,
    page_keys: i32,
    caller: Option<&str>,
) -> TableIterator<'static, (name!(key, String), name!(pid, i64), name!(name, String))> {
    let nobody = || Caller { uid: u32::MAX, gids: Vec::new() };
    let walker = Walker::Caller(caller.and_then(|caller| caller.parse().ok()).unwrap_or_else(nobody));
    let found = Spi::connect(|_| page(pid, prefix, start_after, usize::try_from(page_keys).unwrap_or(0), &walker));
    TableIterator::new(found.into_iter().map(|f| (f.key, f.pid, f.name)))
}
