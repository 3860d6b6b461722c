//! Where objects wait for their directories: both are loaded at once, directories ahead in the order of the walk.
//!
//! Invariant: a directory before position `settled` of the walk has its final id, or the reason why it has none.

use mantle_types::ErrorCode;
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::watch;

use super::tree::Node;

/// Ids of the tree's directories once they are known; refused ones have the code instead.
pub type DirectoryIds = Vec<Result<i64, ErrorCode>>;

/// How far the directories are.
#[derive(Clone, Copy, Default)]
struct Position {
    settled: usize,
    /// No more will come.
    is_over: bool,
}

/// The directories' ids, shared between those who make them and those who need them.
pub struct Settling {
    ids: RwLock<DirectoryIds>,
    position: watch::Sender<Position>,
}

impl Settling {
    /// Of so many directories, only the root is settled.
    pub fn new(directories: usize, root_id: i64) -> Self {
        // Not found until it is.
        let mut ids = vec![Err(ErrorCode::NotFound); directories];
        ids[Node::ROOT.index()] = Ok(root_id);
        Self { ids: RwLock::new(ids), position: watch::Sender::new(Position::default()) }
    }

    /// Takes over the ids of `nodes`; the walk is settled up to position `settled`.
    pub fn settle<'a>(&self, nodes: impl IntoIterator<Item = &'a Node>, known: &DirectoryIds, settled: usize) {
        let mut ids = self.ids.write();
        for node in nodes {
            ids[node.index()] = known[node.index()];
        }
        drop(ids);
        self.position.send_modify(|position| position.settled = settled.max(position.settled));
    }

    /// No more directories will be settled: whoever waits for one need not.
    pub fn end(&self) {
        self.position.send_modify(|position| position.is_over = true);
    }

    /// Waits until the walk is settled up to position `needed`; false when that will not happen.
    pub async fn wait(&self, needed: usize) -> bool {
        let mut position = self.position.subscribe();
        let reached = position.wait_for(|position| position.settled >= needed || position.is_over).await;
        reached.is_ok_and(|position| position.settled >= needed)
    }

    /// The ids. Not to be held while waiting for anything.
    pub fn ids(&self) -> RwLockReadGuard<'_, DirectoryIds> {
        self.ids.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_ends_when_settled_or_over() {
        let settling = Settling::new(3, 7);
        assert!(settling.wait(0).await, "the root is there");
        let nodes: Vec<Node> = (0..3).map(Node::from_index).collect();
        let known = vec![Ok(7), Ok(8), Err(ErrorCode::IsObject)];
        let (reached, ()) = tokio::join!(settling.wait(2), async {
            settling.settle(&nodes[..2], &known, 2);
        });
        assert!(reached);
        assert_eq!(*settling.ids(), [Ok(7), Ok(8), Err(ErrorCode::NotFound)]);
        let (reached, ()) = tokio::join!(settling.wait(3), async { settling.end() });
        assert!(!reached, "it will not come");
        assert!(settling.wait(1).await, "what is settled stays so");
    }
}
