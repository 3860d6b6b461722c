//! Computes over the directories of a namespace in memory, in one pass however deep the tree is. A walk by levels in
//! SQL would send each level to every node of Citus. Input and output are parallel arrays with an element per
//! directory.

use pgrx::prelude::*;

/// Directories, indexed by their parent.
struct Tree {
    ids: Vec<i64>,
    pids: Vec<i64>,
    /// Numbers of elements, sorted by parent.
    by_pid: Vec<usize>,
}

impl Tree {
    fn new(ids: Vec<i64>, pids: Vec<i64>) -> Self {
        let mut by_pid: Vec<usize> = (0..ids.len()).collect();
        by_pid.sort_unstable_by_key(|element| pids[*element]);
        Self { ids, pids, by_pid }
    }

    fn children(&self, pid: i64) -> impl Iterator<Item = usize> + '_ {
        let first = self.by_pid.partition_point(|element| self.pids[*element] < pid);
        self.by_pid[first..].iter().copied().take_while(move |element| self.pids[*element] == pid)
    }

    /// Computes a value for each directory from its parent's, parents first; `None` for those below no start. A start
    /// keeps its own value. No directory is visited twice, so cycles end.
    fn inherit<T: Clone>(&self, starts: Vec<(i64, T)>, child: impl Fn(&T, usize) -> T) -> Vec<Option<T>> {
        let mut found: Vec<Option<T>> = vec![None; self.ids.len()];
        let mut open = starts;
        while let Some((pid, of_parent)) = open.pop() {
            for element in self.children(pid) {
                if found[element].is_none() {
                    let own = child(&of_parent, element);
                    open.push((self.ids[element], own.clone()));
                    found[element] = Some(own);
                }
            }
        }
        found
    }
}

fn non_null(array: &Array<i64>) -> Vec<i64> {
    array.iter().flatten().collect()
}

/// For each directory, the row of the start that it is below, or NULL.
#[pg_extern(immutable, parallel_safe, strict)]
fn tree_rows(start: Array<i64>, row: Array<i32>, id: Array<i64>, pid: Array<i64>) -> Vec<Option<i32>> {
    let starts = start.iter().flatten().zip(row.iter().flatten()).collect();
    Tree::new(non_null(&id), non_null(&pid)).inherit(starts, |row, _| *row)
}

/// For each directory, its key, which begins with the key of the start; NULL if it is not below the start.
#[pg_extern(immutable, parallel_safe, strict)]
fn tree_keys(start: i64, key: &str, id: Array<i64>, pid: Array<i64>, name: Array<&str>) -> Vec<Option<String>> {
    let names: Vec<&str> = name.iter().flatten().collect();
    let tree = Tree::new(non_null(&id), non_null(&pid));
    tree.inherit(vec![(start, key.to_owned())], |key, element| format!("{key}{}", names[element]))
}

/// For each directory, its depth below the super-root, or NULL.
#[pg_extern(immutable, parallel_safe, strict)]
fn tree_depths(id: Array<i64>, pid: Array<i64>) -> Vec<Option<i32>> {
    Tree::new(non_null(&id), non_null(&pid)).inherit(vec![(0, 0)], |depth, _| depth + 1)
}

/// Directories on a cycle, or below one: no root leads to them. Roots are the parents that are not in the list: the
/// super-root, the trash, and directories whose own entry is missing.
fn unreached(ids: Vec<i64>, pids: Vec<i64>) -> Vec<i64> {
    let mut known = ids.clone();
    known.sort_unstable();
    let mut roots: Vec<i64> = pids.iter().copied().filter(|pid| known.binary_search(pid).is_err()).collect();
    roots.sort_unstable();
    roots.dedup();
    let tree = Tree::new(ids, pids);
    let reached = tree.inherit(roots.into_iter().map(|pid| (pid, ())).collect(), |(), _| ());
    tree.ids.iter().zip(reached).filter(|(_, reached)| reached.is_none()).map(|(id, _)| *id).collect()
}

/// The directories on a cycle or below one.
#[pg_extern(immutable, parallel_safe, strict)]
fn unreached_directories(id: Array<i64>, pid: Array<i64>) -> Vec<i64> {
    unreached(non_null(&id), non_null(&pid))
}

#[cfg(test)]
mod tests {
    use super::{Tree, unreached};

    #[test]
    fn directories_on_cycles_and_below_them_are_unreached() {
        // 10 and 11: below the super-root. 12: below a directory without an entry. 20, 21: a cycle; 22: below it. 30:
        // its own parent.
        assert_eq!(unreached(vec![10, 11, 12, 20, 21, 22, 30], vec![0, 10, 99, 21, 20, 21, 30]), [20, 21, 22, 30]);
        assert!(unreached(vec![], vec![]).is_empty());
    }

    #[test]
    fn an_id_with_two_entries_is_reached_by_either() {
        assert!(unreached(vec![10, 10, 11], vec![0, 11, 10]).is_empty());
    }

    #[test]
    fn each_directory_inherits_from_its_parent() {
        let tree = Tree::new(vec![12, 11, 10, 20], vec![11, 10, 1, 2]);
        assert_eq!(tree.inherit(vec![(10, 0)], |depth, _| depth + 1), [Some(2), Some(1), None, None]);
    }
}
