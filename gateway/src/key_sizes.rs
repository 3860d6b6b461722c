//! Upper bounds for the sizes of a namespace's keys, which are in its row in PostgreSQL. A rename of a directory relies
//! on them (P55), so they are raised before a larger key is made. For a new key they rise in a few large steps, for a
//! directory that moves to the size of its largest key. Most rows are never written.

use std::collections::HashMap;

use mantle_types::{
    NamespaceId, Result,
    limits::{KEY_BYTES_FIRST, KEY_BYTES_MAX, KEY_LEVELS_FIRST, PATH_DEPTH_MAX},
    name::Path,
};
use parking_lot::RwLock;

use crate::store::Store;

/// How large a key is, or by how much one is larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySize {
    /// Components.
    pub levels: i32,
    /// Bytes, with the slashes in between, and the one that ends a directory's key.
    pub bytes: i32,
}

impl KeySize {
    const FIRST: Self = Self { levels: KEY_LEVELS_FIRST as i32, bytes: KEY_BYTES_FIRST as i32 };

    pub fn of(path: &Path<'_>) -> Self {
        let components = path.components();
        let slashes = components.len().saturating_sub(usize::from(!path.is_directory()));
        let names: usize = components.iter().map(|name| name.len()).sum();
        Self { levels: components.len() as i32, bytes: (names + slashes) as i32 }
    }

    /// What is added to keys when a directory moves; `None` if they do not grow.
    pub fn added(source: &Path<'_>, destination: &Path<'_>) -> Option<Self> {
        let (from, to) = (Self::of(source), Self::of(destination));
        let added = Self { levels: to.levels - from.levels, bytes: to.bytes - from.bytes };
        (added.levels > 0 || added.bytes > 0).then_some(added)
    }

    fn is_within(self, other: Self) -> bool {
        self.levels <= other.levels && self.bytes <= other.bytes
    }

    /// The step that a size is rounded up to: a power of two times the first, at most the limit.
    fn step(self) -> Self {
        let step = |size: i32, first: i32, max: usize| {
            std::iter::successors(Some(first), |step| Some(step * 2))
                .find(|step| *step >= size)
                .unwrap_or(size)
                .min(max as i32)
        };
        Self {
            levels: step(self.levels, Self::FIRST.levels, PATH_DEPTH_MAX),
            bytes: step(self.bytes, Self::FIRST.bytes, KEY_BYTES_MAX),
        }
    }
}

/// What this process has seen of the namespaces' rows.
#[derive(Default)]
pub struct KeySizes {
    /// The sizes that are permitted. A namespace that is not here permits at least the first.
    permitted: RwLock<HashMap<NamespaceId, KeySize>>,
    /// The smallest growth that a row has refused, by the namespace's name. A row never permits more than before. A new
    /// namespace with an old name does: then a directory is measured without need.
    refused: RwLock<HashMap<Box<str>, KeySize>>,
}

impl KeySizes {
    /// Makes sure that the namespace's row permits a key, before it is made.
    pub async fn admit(&self, store: &Store, ns: NamespaceId, key: &Path<'_>) -> Result<()> {
        let size = KeySize::of(key);
        match self.is_permitted(ns, size) {
            true => Ok(()),
            false => self.raise(store, ns, size.step()).await,
        }
    }

    fn is_permitted(&self, ns: NamespaceId, size: KeySize) -> bool {
        size.is_within(KeySize::FIRST) || self.permitted.read().get(&ns).is_some_and(|known| size.is_within(*known))
    }

    /// Makes sure that the namespace's row permits keys of exactly this size.
    pub async fn raise(&self, store: &Store, ns: NamespaceId, size: KeySize) -> Result<()> {
        if self.is_permitted(ns, size) {
            return Ok(());
        }
        let known = self.permitted.read().get(&ns).copied().unwrap_or(KeySize::FIRST);
        let raised = KeySize { levels: size.levels.max(known.levels), bytes: size.bytes.max(known.bytes) };
        store.raise_key_size(ns, raised.levels, raised.bytes).await?;
        // Another call may have raised it further meanwhile.
        let mut sizes = self.permitted.write();
        let known = sizes.entry(ns).or_insert(raised);
        *known = KeySize { levels: known.levels.max(raised.levels), bytes: known.bytes.max(raised.bytes) };
        Ok(())
    }

    /// Notes that the row of a namespace refused a directory's move, because it adds this to keys.
    pub fn note_refused(&self, namespace: &str, added: KeySize) {
        let mut refused = self.refused.write();
        match refused.get_mut(namespace) {
            Some(known) if added.is_within(*known) => *known = added,
            Some(_) => {}
            None => {
                refused.insert(namespace.into(), added);
            }
        }
    }

    /// Whether the row is known to refuse a move that adds this.
    pub fn is_refused(&self, namespace: &str, added: KeySize) -> bool {
        self.refused.read().get(namespace).is_some_and(|refused| refused.is_within(added))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(levels: i32, bytes: i32) -> KeySize {
        KeySize { levels, bytes }
    }

    #[test]
    fn a_size_is_the_key_s() {
        for key in ["a", "a/", "a/bc", "a/bc/", "\u{e4}/b"] {
            assert_eq!(KeySize::of(&Path::parse(key).unwrap()).bytes, key.len() as i32, "{key}");
        }
        assert_eq!(KeySize::of(&Path::parse("a/b/").unwrap()).levels, 2);
    }

    #[test]
    fn only_longer_paths_add() {
        let added = |from: &str, to: &str| KeySize::added(&Path::parse(from).unwrap(), &Path::parse(to).unwrap());
        assert_eq!(added("a/", "b/"), None);
        assert_eq!(added("a/b/", "c/"), None);
        assert_eq!(added("a/", "b/c/"), Some(size(1, 2)));
        assert_eq!(added("a/b/", "long/"), Some(size(-1, 1)));
        assert_eq!(added("long/", "a/b/"), Some(size(1, -1)));
    }

    #[test]
    fn what_adds_as_much_is_refused_too() {
        let sizes = KeySizes::default();
        assert!(!sizes.is_refused("a", size(1, 1)));
        sizes.note_refused("a", size(2, 10));
        assert!(sizes.is_refused("a", size(2, 10)) && sizes.is_refused("a", size(3, 10)));
        assert!(!sizes.is_refused("a", size(1, 20)) && !sizes.is_refused("b", size(2, 10)));
        sizes.note_refused("a", size(3, 10));
        sizes.note_refused("a", size(1, 20));
        assert!(sizes.is_refused("a", size(2, 10)), "what was refused stays so");
        sizes.note_refused("a", size(1, 5));
        assert!(sizes.is_refused("a", size(1, 20)));
    }

    #[test]
    fn sizes_rise_in_steps_to_the_limits() {
        assert_eq!(size(1, 1).step(), KeySize::FIRST);
        assert_eq!(size(17, 128).step(), size(32, 128));
        assert_eq!(size(100, 1000).step(), size(128, 1024));
        assert_eq!(size(128, 1024).step(), size(128, 1024));
    }
}
