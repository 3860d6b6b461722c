//! The listing's entries in memory: a tree of directories, and objects that point into it. It is compact, because a
//! listing has millions of paths. A directory's name is stored once for all paths through it. All names are in one
//! string, and an object takes 24 bytes beside its name. Invariant: every name in the tree passed `mantle_types::name`,
//! and a directory's parent precedes it in `directories`.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use mantle_types::{
    Error, ErrorCode, Result,
    limits::{KEY_BYTES_MAX, PATH_DEPTH_MAX},
    name::{Path, check_name},
};

use super::listing::Item;

/// A directory of the tree: its position in [`Tree::directories`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(u32);

impl Node {
    /// The namespace's root; it has no name.
    pub const ROOT: Self = Self(0);

    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).expect("fewer than 2^32 directories fit into memory"))
    }
}

/// A name's place in the string of names: offset in the upper 56 bits, length (at most 255 bytes) in the lower 8.
#[derive(Clone, Copy, Debug)]
pub struct Name(u64);

impl Name {
    fn of(self, names: &str) -> &str {
        let offset = (self.0 >> 8) as usize;
        &names[offset..offset + (self.0 & 0xff) as usize]
    }
}

/// A directory that the listing names or implies.
#[derive(Clone, Copy, Debug)]
pub struct Directory {
    pub name: Name,
    pub parent: Node,
    /// The first line that names or implies it.
    pub line: u32,
    /// The line that names it (`…/`); 0 if only lines below it imply it.
    pub listed: u32,
    /// Components from the root to it.
    pub depth: u8,
}

fn place<'a>(directory: &Directory, names: &'a str) -> (Node, &'a str) {
    (directory.parent, directory.name.of(names))
}

#[derive(Clone, Copy, Debug)]
pub struct Object {
    pub name: Name,
    /// Bytes, or [`Object::NO_SIZE`].
    pub size: i64,
    pub parent: Node,
    pub line: u32,
}

impl Object {
    pub const NO_SIZE: i64 = -1;
}

#[derive(Debug, PartialEq, Eq)]
pub enum Insertion {
    /// It is in the tree. (Duplicate objects are found later, by [`super::order`].)
    Taken,
    /// A directory that an earlier line names.
    ListedBefore { line: u32 },
}

pub struct Tree {
    names: String,
    /// All directories, the root first.
    pub directories: Vec<Directory>,
    /// All objects, in the order of the listing.
    pub objects: Vec<Object>,
    /// By `(parent, name)`.
    table: HashTable<Node>,
    hasher: RandomState,
    /// The previous line's parent as text and as node; most lines share it.
    previous: (String, Node),
}

impl Default for Tree {
    fn default() -> Self {
        let root = Directory { name: Name(0), parent: Node::ROOT, line: 0, listed: 0, depth: 0 };
        Self {
            names: String::new(),
            directories: vec![root],
            objects: Vec::new(),
            table: HashTable::new(),
            hasher: RandomState::new(),
            previous: (String::new(), Node::ROOT),
        }
    }
}

impl Tree {
    /// Adds a line's item. A refused item leaves nothing in the tree, not even its parents.
    pub fn insert(&mut self, line: u32, item: &Item<'_>) -> Result<Insertion> {
        let (body, is_directory) = match item.key.strip_suffix('/') {
            Some(body) => (body, true),
            None => (item.key, false),
        };
        let (parent_key, name) = body.split_at(body.rfind('/').map_or(0, |slash| slash + 1));
        let parent = self.parent(line, item.key, parent_key, name)?;
        if !is_directory {
            let size = item.size.unwrap_or(Object::NO_SIZE);
            let name = self.keep(name);
            self.objects.push(Object { name, size, parent, line });
            return Ok(Insertion::Taken);
        }
        let node = self.child_or_insert(line, parent, name);
        let listed = &mut self.directories[node.index()].listed;
        if *listed != 0 {
            return Ok(Insertion::ListedBefore { line: *listed });
        }
        *listed = line;
        Ok(Insertion::Taken)
    }

    /// Checks the key, and finds its parent or makes it.
    fn parent(&mut self, line: u32, key: &str, parent_key: &str, name: &str) -> Result<Node> {
        let (previous_key, previous) = &self.previous;
        if parent_key == previous_key {
            // The parent's components are checked already; check the name and the limits of the whole key.
            if key.len() > KEY_BYTES_MAX {
                return Err(ErrorCode::KeyTooLong.into());
            }
            if usize::from(self.directories[previous.index()].depth) >= PATH_DEPTH_MAX {
                return Err(Error::from(ErrorCode::PathTooDeep));
            }
            check_name(name)?;
            return Ok(*previous);
        }
        let path = Path::parse(key)?;
        let parents = path.split_last().map_or(&[][..], |(_, parents)| parents);
        let node = parents.iter().fold(Node::ROOT, |node, name| self.child_or_insert(line, node, name));
        self.previous.0.clear();
        self.previous.0.push_str(parent_key);
        self.previous.1 = node;
        Ok(node)
    }

    /// The directory `name` in `parent`, if the tree has it.
    pub fn child(&self, parent: Node, name: &str) -> Option<Node> {
        let is_it = |node: &Node| place(&self.directories[node.index()], &self.names) == (parent, name);
        self.table.find(self.hasher.hash_one((parent, name)), is_it).copied()
    }

    fn child_or_insert(&mut self, line: u32, parent: Node, name: &str) -> Node {
        if let Some(node) = self.child(parent, name) {
            return node;
        }
        let node = Node::from_index(self.directories.len());
        let depth = self.directories[parent.index()].depth + 1;
        let name = self.keep(name);
        self.directories.push(Directory { name, parent, line, listed: 0, depth });
        let Self { names, directories, table, hasher, .. } = self;
        let hash = |node: &Node| hasher.hash_one(place(&directories[node.index()], names));
        table.insert_unique(hash(&node), node, hash);
        node
    }

    fn keep(&mut self, name: &str) -> Name {
        let offset = self.names.len() as u64;
        self.names.push_str(name);
        Name(offset << 8 | name.len() as u64)
    }

    pub fn name(&self, name: Name) -> &str {
        name.of(&self.names)
    }

    /// A directory's path, with a slash at its end; empty for the root.
    pub fn directory_path(&self, node: Node) -> String {
        if node == Node::ROOT {
            return String::new();
        }
        let Directory { name, parent, .. } = self.directories[node.index()];
        self.directory_path(parent) + self.name(name) + "/"
    }

    /// An object's path.
    pub fn object_path(&self, object: &Object) -> String {
        self.directory_path(object.parent) + self.name(object.name)
    }

    /// The components that a path may have.
    pub fn levels(&self) -> usize {
        let deepest = self.directories.iter().map(|directory| directory.depth).max().unwrap_or_default();
        (usize::from(deepest) + 1).min(PATH_DEPTH_MAX)
    }

    pub fn heap_bytes(&self) -> usize {
        self.names.capacity()
            + self.directories.capacity() * size_of::<Directory>()
            + self.objects.capacity() * size_of::<Object>()
            + self.table.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn insert(tree: &mut Tree, line: u32, key: &str) -> Result<Insertion> {
        tree.insert(line, &Item { key, size: None })
    }

    fn directory_paths(tree: &Tree) -> Vec<String> {
        (0..tree.directories.len()).map(|i| tree.directory_path(Node::from_index(i))).collect()
    }

    fn object_paths(tree: &Tree) -> Vec<String> {
        tree.objects.iter().map(|object| tree.object_path(object)).collect()
    }

    #[test]
    fn parents_are_made_once() {
        let mut tree = Tree::default();
        for (line, key) in [(1, "usr/bin/ls"), (2, "usr/bin/cat"), (3, "usr/lib/"), (4, "top")] {
            assert_eq!(insert(&mut tree, line, key), Ok(Insertion::Taken));
        }
        assert_eq!(directory_paths(&tree), ["", "usr/", "usr/bin/", "usr/lib/"]);
        assert_eq!(object_paths(&tree), ["usr/bin/ls", "usr/bin/cat", "top"]);
        assert_eq!(insert(&mut tree, 5, "usr/lib/"), Ok(Insertion::ListedBefore { line: 3 }));
        assert_eq!(insert(&mut tree, 6, "usr/"), Ok(Insertion::Taken), "implied before, now named");
    }

    #[test]
    fn a_refused_path_leaves_nothing_behind() {
        let (long, deep) = ("n".repeat(256), "d/".repeat(129));
        for key in ["/", "/a", "new/../b", "new//b", "new/a\0b", "new/.", &long, &deep, &"k/".repeat(600)] {
            let mut tree = Tree::default();
            insert(&mut tree, 1, "old/x").unwrap();
            assert!(insert(&mut tree, 2, key).is_err(), "{key:?}");
            // Once more below the parent that the previous line had.
            assert!(insert(&mut tree, 3, &format!("old/{key}")).is_err(), "{key:?}");
            assert_eq!((tree.directories.len(), tree.objects.len()), (2, 1), "{key:?}");
        }
    }

    #[test]
    fn the_limits_hold_below_a_remembered_parent() {
        let mut tree = Tree::default();
        let parent = "d/".repeat(127);
        insert(&mut tree, 1, &format!("{parent}x")).unwrap();
        insert(&mut tree, 2, &format!("{parent}y")).unwrap();
        insert(&mut tree, 3, &format!("{parent}d/")).unwrap();
        assert_eq!(insert(&mut tree, 4, &format!("{parent}d/z")).unwrap_err().code(), ErrorCode::PathTooDeep);
        let parent = format!("{0}/{0}/{0}/{0}/", "n".repeat(250));
        insert(&mut tree, 5, &format!("{parent}x")).unwrap();
        let error = insert(&mut tree, 6, &format!("{parent}{}", "y".repeat(30))).unwrap_err();
        assert_eq!(error.code(), ErrorCode::KeyTooLong);
    }

    proptest! {
        #[test]
        fn the_tree_is_the_set_of_all_prefixes(
            keys in proptest::collection::vec(proptest::collection::vec("[ab]{1,2}", 1..6), 0..400),
        ) {
            let (mut tree, mut expected) = (Tree::default(), HashSet::from([String::new()]));
            for (line, components) in keys.iter().enumerate() {
                insert(&mut tree, line as u32 + 1, &components.join("/")).unwrap();
                expected.extend((1..components.len()).map(|n| components[..n].join("/") + "/"));
            }
            let paths = directory_paths(&tree);
            prop_assert_eq!(paths.len(), expected.len(), "none twice");
            prop_assert_eq!(paths.into_iter().collect::<HashSet<_>>(), expected);
            prop_assert_eq!(object_paths(&tree), keys.iter().map(|k| k.join("/")).collect::<Vec<_>>());
        }
    }
}
