//! The order in which a tree is loaded, and the objects that are not loaded: pure functions of the tree. Ids ascend
//! along a walk of the tree: a directory, then the entries below it, names in PostgreSQL's C order. So neighbouring
//! objects go to neighbouring pages of the primary key. A parent is made in an earlier call than its children, or
//! earlier in the same call. A batch of objects touches few directories.

use std::{cmp::Ordering, ops::Range};

use mantle_types::limits::{BATCH_ELEMENTS_MAX, BATCH_LATCHES_MAX};

use super::tree::{Node, Object, Tree};

/// Why an object of the tree is not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// This earlier line names the same object.
    Duplicate { line: u32 },
    /// Other lines, first this one, make it a directory; the directory stays.
    IsDirectory { line: u32 },
}

pub struct Order {
    /// All directories but the root, parents before children.
    pub walk: Vec<Node>,
    /// The same directories by depth, the root's children first; each level in the order of the walk.
    pub levels: Vec<Vec<Node>>,
    /// Positions in [`Tree::objects`]: objects with a size first; each of the two parts by directory in the order of
    /// the walk, then by name.
    pub objects: Vec<u32>,
    pub refused: Vec<(u32, Refusal)>,
}

/// A call of `import_objects`: a range of [`Order::objects`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub range: Range<usize>,
    pub is_synthetic: bool,
}

impl Order {
    pub fn new(tree: &Tree) -> Self {
        let walk = walk(tree);
        let mut levels: Vec<Vec<Node>> = Vec::new();
        for node in &walk {
            let level = usize::from(tree.directories[node.index()].depth) - 1;
            if levels.len() <= level {
                levels.resize_with(level + 1, Vec::new);
            }
            levels[level].push(*node);
        }
        let (objects, refused) = objects(tree, &walk);
        Self { walk, levels, objects, refused }
    }

    pub fn has_synthetic_sizes(&self, tree: &Tree) -> bool {
        // Those with a size come first.
        self.objects.last().is_some_and(|at| tree.objects[*at as usize].size == Object::NO_SIZE)
    }

    /// Cuts the objects into batches of at most `elements_max` elements in at most `latches_max` directories.
    pub fn batches(&self, tree: &Tree, elements_max: usize, latches_max: usize) -> Vec<Batch> {
        assert!((1..=BATCH_ELEMENTS_MAX).contains(&elements_max) && (1..=BATCH_LATCHES_MAX).contains(&latches_max));
        let object = |at: usize| &tree.objects[self.objects[at] as usize];
        let is_synthetic = |at: usize| object(at).size == Object::NO_SIZE;
        let mut batches = Vec::new();
        let (mut start, mut latches, end) = (0, 1, self.objects.len());
        for at in 1..=end {
            let is_new_latch = at < end && object(at).parent != object(at - 1).parent;
            let is_full = at - start == elements_max || is_new_latch && latches == latches_max;
            if at == end || is_full || is_synthetic(at) != is_synthetic(start) {
                batches.push(Batch { range: start..at, is_synthetic: is_synthetic(start) });
                (start, latches) = (at, 1);
            } else {
                latches += usize::from(is_new_latch);
            }
        }
        batches
    }
}

/// Cuts directories, parents before children, into calls of at most `elements_max`. A call has at most `latches_max`
/// different parents outside it, which the extension latches.
pub fn directory_batches(
    tree: &Tree,
    nodes: impl IntoIterator<Item = Node>,
    elements_max: usize,
    latches_max: usize,
) -> Vec<Vec<Node>> {
    // The last batch that has the directory, or latches it; 0 for none.
    let mut batch_of = vec![0u32; tree.directories.len()];
    let mut batches: Vec<Vec<Node>> = Vec::new();
    let mut latches = 0;
    for node in nodes {
        let parent = tree.directories[node.index()].parent.index();
        let is_new_latch = batch_of[parent] as usize != batches.len();
        match batches.last_mut() {
            Some(batch) if batch.len() < elements_max && !(is_new_latch && latches == latches_max) => batch.push(node),
            _ => {
                batches.push(vec![node]);
                latches = 0;
            }
        }
        let number = batches.len() as u32;
        if batch_of[parent] != number {
            latches += 1;
            batch_of[parent] = number;
        }
        batch_of[node.index()] = number;
    }
    batches
}

/// Orders the batches for workers that take them in turn: each gets a contiguous range. So two workers rarely wait for
/// the same directory's latch or write to the same page.
pub fn interleave<T>(batches: Vec<T>, workers: usize) -> Vec<T> {
    let range = batches.len().div_ceil(workers.max(1)).max(1);
    let mut keyed: Vec<(usize, T)> = batches.into_iter().enumerate().map(|(at, batch)| (at % range, batch)).collect();
    keyed.sort_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, batch)| batch).collect()
}

/// C order of two directory names with the trailing slash that PostgreSQL stores.
fn compare_directories(a: &str, b: &str) -> Ordering {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let common = a.len().min(b.len());
    let next = |name: &[u8]| name.get(common).copied().unwrap_or(b'/');
    a[..common].cmp(&b[..common]).then_with(|| next(a).cmp(&next(b)))
}

/// All directories but the root, parents before children, siblings in C order.
fn walk(tree: &Tree) -> Vec<Node> {
    let mut children: Vec<Node> = (1..tree.directories.len()).map(Node::from_index).collect();
    let parent = |node: &Node| tree.directories[node.index()].parent;
    let name = |node: &Node| tree.name(tree.directories[node.index()].name);
    // In reverse order, for the stack below.
    children.sort_unstable_by(|a, b| parent(a).cmp(&parent(b)).then_with(|| compare_directories(name(b), name(a))));
    let mut children_of = vec![&[][..]; tree.directories.len()];
    for siblings in children.chunk_by(|a, b| parent(a) == parent(b)) {
        children_of[parent(&siblings[0]).index()] = siblings;
    }
    let mut stack = children_of[Node::ROOT.index()].to_vec();
    let mut walk = Vec::with_capacity(children.len());
    while let Some(node) = stack.pop() {
        walk.push(node);
        stack.extend_from_slice(children_of[node.index()]);
    }
    walk
}

/// The objects in loading order, and those left out.
fn objects(tree: &Tree, walk: &[Node]) -> (Vec<u32>, Vec<(u32, Refusal)>) {
    let mut rank = vec![0u32; tree.directories.len()];
    for (node, rank_of_node) in walk.iter().zip(1..) {
        rank[node.index()] = rank_of_node;
    }
    let object = |at: u32| &tree.objects[at as usize];
    // Lines are counted in 32 bits, so objects are, too.
    let mut sorted: Vec<(u32, u32)> =
        (0..tree.objects.len() as u32).map(|at| (rank[object(at).parent.index()], at)).collect();
    sorted.sort_unstable();
    for group in sorted.chunk_by_mut(|(a, _), (b, _)| a == b) {
        group.sort_by(|(_, a), (_, b)| tree.name(object(*a).name).cmp(tree.name(object(*b).name)));
    }
    let (mut kept, mut refused) = (Vec::with_capacity(sorted.len()), Vec::new());
    let mut previous: Option<&Object> = None;
    for (_, at) in sorted {
        let this = object(at);
        let name = tree.name(this.name);
        if let Some(first) = previous.filter(|first| first.parent == this.parent && tree.name(first.name) == name) {
            refused.push((at, Refusal::Duplicate { line: first.line }));
            continue;
        }
        previous = Some(this);
        match tree.child(this.parent, name) {
            Some(node) => refused.push((at, Refusal::IsDirectory { line: tree.directories[node.index()].line })),
            None => kept.push(at),
        }
    }
    // A call has either synthetic or given sizes.
    kept.sort_by_key(|at| object(*at).size == Object::NO_SIZE);
    (kept, refused)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::{super::listing::Item, *};

    fn ordered(items: &[(&str, Option<i64>)]) -> (Tree, Order) {
        let mut tree = Tree::default();
        for (line, (key, size)) in (1..).zip(items) {
            tree.insert(line, &Item { key, size: *size }).unwrap();
        }
        let order = Order::new(&tree);
        (tree, order)
    }

    fn object_paths(tree: &Tree, order: &Order) -> Vec<String> {
        order.objects.iter().map(|at| tree.object_path(&tree.objects[*at as usize])).collect()
    }

    #[test]
    fn directories_go_in_c_order_of_their_stored_names() {
        let (tree, order) =
            ordered(&[("a/x", None), ("a-b/x", None), ("a0/x", None), ("a/b/x", None), ("é/x", None), ("Z/", None)]);
        let walk: Vec<_> = order.walk.iter().map(|node| tree.directory_path(*node)).collect();
        assert_eq!(walk, ["Z/", "a-b/", "a/", "a/b/", "a0/", "é/"]);
        assert_eq!(order.levels.iter().map(Vec::len).collect::<Vec<_>>(), [5, 1]);
        assert_eq!(object_paths(&tree, &order), ["a-b/x", "a/x", "a/b/x", "a0/x", "é/x"]);
    }

    #[test]
    fn the_first_of_duplicates_and_the_directory_stay() {
        let (tree, order) =
            ordered(&[("d/b", Some(1)), ("d/a", None), ("d/b", None), ("d", None), ("d/b", Some(3)), ("d/a/", None)]);
        assert_eq!(object_paths(&tree, &order), ["d/b"]);
        assert_eq!(tree.objects[order.objects[0] as usize].line, 1);
        let mut refused: Vec<_> =
            order.refused.iter().map(|(at, why)| (tree.objects[*at as usize].line, *why)).collect();
        refused.sort_by_key(|(line, _)| *line);
        let expected = [
            (2, Refusal::IsDirectory { line: 6 }),
            (3, Refusal::Duplicate { line: 1 }),
            (4, Refusal::IsDirectory { line: 1 }),
            (5, Refusal::Duplicate { line: 1 }),
        ];
        assert_eq!(refused, expected);
    }

    #[test]
    fn workers_get_ranges_of_their_own() {
        assert_eq!(interleave((0..7).collect(), 2), [0, 4, 1, 5, 2, 6, 3]);
        assert_eq!(interleave((0..3).collect(), 8), [0, 1, 2]);
        assert!(interleave(Vec::<u8>::new(), 3).is_empty());
    }

    proptest! {
        #[test]
        fn directory_batches_bring_parents_first_and_latch_few(
            keys in proptest::collection::vec("([a-c]{1,2}/){1,5}", 1..300),
            elements_max in 1usize..20,
            latches_max in 1usize..5,
        ) {
            let items: Vec<_> = keys.iter().map(|key| (key.as_str(), None)).collect();
            let (tree, order) = ordered(&items);
            let batches = directory_batches(&tree, order.walk.iter().copied(), elements_max, latches_max);
            prop_assert_eq!(batches.concat(), order.walk);
            let parent = |node: &Node| tree.directories[node.index()].parent;
            for batch in batches {
                prop_assert!((1..=elements_max).contains(&batch.len()));
                let outside: BTreeSet<Node> = batch.iter().map(parent).filter(|node| !batch.contains(node)).collect();
                prop_assert!(outside.len() <= latches_max);
            }
        }

        #[test]
        fn batches_cover_all_objects_within_the_limits(
            keys in proptest::collection::vec(("[a-d]{1,2}/[a-z]{1,3}", proptest::option::of(0i64..9)), 0..300),
            elements_max in 1usize..20,
            latches_max in 1usize..5,
        ) {
            let items: Vec<_> = keys.iter().map(|(key, size)| (key.as_str(), *size)).collect();
            let (tree, order) = ordered(&items);
            let mut next = 0;
            for batch in order.batches(&tree, elements_max, latches_max) {
                prop_assert_eq!(batch.range.start, next);
                next = batch.range.end;
                prop_assert!((1..=elements_max).contains(&batch.range.len()));
                let objects: Vec<_> = order.objects[batch.range].iter().map(|at| &tree.objects[*at as usize]).collect();
                let mut parents: Vec<_> = objects.iter().map(|object| object.parent).collect();
                parents.dedup();
                prop_assert!(parents.len() <= latches_max);
                prop_assert!(objects.iter().all(|object| (object.size == Object::NO_SIZE) == batch.is_synthetic));
            }
            prop_assert_eq!(next, order.objects.len());
            let names: BTreeSet<&str> = items.iter().map(|(key, _)| *key).collect();
            prop_assert_eq!(order.objects.len(), names.len());
        }
    }
}
