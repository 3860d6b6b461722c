//! An entry of TopDirPathCache: the directory to which a prefix leads.
//!
//! One allocation holds a head, the distinct permissions on the prefix, the namespace's name, the prefix, and the directories
//! on the prefix. A lookup reads the directories only if their signature tells that one may be modified. Separate allocations
//! took twice as many cache lines a lookup.

use mantle_types::{
    DirectoryId, NamespaceId, Permission,
    limits::{KEY_BYTES_MAX, NAMESPACE_BYTES_MAX},
};
use smallvec::SmallVec;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::signature::Signature;
use crate::{index::Path, prefetch::prefetch_all};

const WHOLE: &str = "an entry has the lengths in its head";

// Lengths and counts have 16 bits. A key has at most one component for every two bytes, one directory more than components, and
// no more permissions than directories.
const _: () = assert!(KEY_BYTES_MAX < 1 << 16 && NAMESPACE_BYTES_MAX < 1 << 16);

/// The distinct permissions on a prefix; mostly one or two.
pub(super) type Permissions = SmallVec<[Permission; 2]>;

/// A namespace's name and the prefix of a path in it.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    pub hash: u64,
    pub namespace: &'a str,
    pub prefix: Path<'a>,
    /// The rest of the path; not part of the key.
    pub below: Path<'a>,
}

impl Key<'_> {
    fn bytes(&self) -> usize {
        self.namespace.len() + self.prefix.0.len()
    }
}

#[derive(Debug)]
pub(super) struct CachedPrefix(Box<[u8]>);

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    hash: U64,
    ns: U64,
    id: U64,
    signature: U64,
    namespace_bytes: U16,
    prefix_bytes: U16,
    permissions: U16,
    directories: U16,
}

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct PermissionRow {
    owner: U32,
    group: U32,
    mode: U16,
}

struct Parts<'a> {
    head: &'a Head,
    permissions: &'a [PermissionRow],
    /// The namespace's name and the prefix.
    key: &'a [u8],
    ids: &'a [U64],
}

impl CachedPrefix {
    /// `ids`: the directories on the prefix, the namespace's root first; one more than components.
    pub(super) fn new(key: &Key<'_>, ids: &[DirectoryId], permissions: &[Permission]) -> Self {
        let short = |length: usize| U16::new(u16::try_from(length).expect("checked where the limits are"));
        let head = Head {
            hash: key.hash.into(),
            ns: ids[0].0.into(),
            id: ids[ids.len() - 1].0.into(),
            signature: Signature::of(ids.iter().copied()).0.into(),
            namespace_bytes: short(key.namespace.len()),
            prefix_bytes: short(key.prefix.0.len()),
            permissions: short(permissions.len()),
            directories: short(ids.len()),
        };
        let rows: Vec<_> = permissions
            .iter()
            .map(|of| PermissionRow { owner: of.owner.into(), group: of.group.into(), mode: of.mode.into() })
            .collect();
        let ids: Vec<U64> = ids.iter().map(|id| id.0.into()).collect();
        let parts: [&[u8]; 5] =
            [head.as_bytes(), rows.as_bytes(), key.namespace.as_bytes(), key.prefix.0.as_bytes(), ids.as_bytes()];
        Self(parts.concat().into())
    }

    fn head(&self) -> &Head {
        Head::ref_from_prefix(&self.0).expect(WHOLE).0
    }

    fn parts(&self) -> Parts<'_> {
        let (head, rest) = Head::ref_from_prefix(&self.0).expect(WHOLE);
        let permissions = usize::from(head.permissions.get());
        let (permissions, rest) = <[PermissionRow]>::ref_from_prefix_with_elems(rest, permissions).expect(WHOLE);
        let (key, ids) = rest.split_at(usize::from(head.namespace_bytes.get()) + usize::from(head.prefix_bytes.get()));
        Parts { head, permissions, key, ids: <[U64]>::ref_from_bytes(ids).expect(WHOLE) }
    }

    pub(super) fn hash(&self) -> u64 {
        self.head().hash.get()
    }

    pub(super) fn ns(&self) -> NamespaceId {
        NamespaceId(self.head().ns.get())
    }

    pub(super) fn id(&self) -> DirectoryId {
        DirectoryId(self.head().id.get())
    }

    /// Of the directories on the prefix.
    pub(super) fn signature(&self) -> Signature {
        Signature(self.head().signature.get())
    }

    pub(super) fn depth(&self) -> usize {
        usize::from(self.head().directories.get()) - 1
    }

    pub(super) fn permissions(&self) -> impl Iterator<Item = Permission> {
        let permission =
            |row: &PermissionRow| Permission { owner: row.owner.get(), group: row.group.get(), mode: row.mode.get() };
        self.parts().permissions.iter().map(permission)
    }

    /// The directories on the prefix, the namespace's root first.
    pub(super) fn ids(&self) -> impl Iterator<Item = DirectoryId> + Clone {
        self.parts().ids.iter().map(|id| DirectoryId(id.get()))
    }

    /// Compares lengths and bytes, so that no odd name makes two paths equal.
    pub(super) fn has_key(&self, key: &Key<'_>) -> bool {
        let Parts { head, key: own, .. } = self.parts();
        head.hash.get() == key.hash
            && usize::from(head.namespace_bytes.get()) == key.namespace.len()
            && own.len() == key.bytes()
            && own.starts_with(key.namespace.as_bytes())
            && own.ends_with(key.prefix.0.as_bytes())
    }

    pub(super) fn has_same_key(&self, other: &Self) -> bool {
        let (own, other) = (self.parts(), other.parts());
        own.head.namespace_bytes == other.head.namespace_bytes && own.key == other.key
    }

    /// Prefetches what a lookup reads, assuming that the entry has this key and one permission.
    pub(super) fn prefetch(&self, key: &Key<'_>) {
        let bytes = size_of::<Head>() + size_of::<PermissionRow>() + key.bytes();
        prefetch_all(&self.0[..self.0.len().min(bytes)]);
    }

    /// Approximate memory in bytes, its share of the hash table included.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() * 8 / 7 + 1 + self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key<'a>(namespace: &'a str, prefix: &'a str) -> Key<'a> {
        Key { hash: 7, namespace, prefix: Path(prefix), below: Path("below") }
    }

    #[test]
    fn an_entry_returns_the_values_it_was_made_from() {
        for (ids, permissions) in [(2, 1), (3, 2), (300, 300)] {
            let ids: Vec<_> = (0..ids).map(|at| DirectoryId(u64::MAX - at)).collect();
            let permission = |at| Permission { owner: at, group: u32::MAX - at, mode: 0o700 + at as u16 };
            let permissions: Vec<_> = (0..permissions).map(permission).collect();
            let entry = CachedPrefix::new(&key("photos", "a/ä"), &ids, &permissions);
            assert_eq!((entry.hash(), entry.ns(), entry.id()), (7, NamespaceId(ids[0].0), ids[ids.len() - 1]));
            assert_eq!(entry.depth(), ids.len() - 1);
            assert_eq!(entry.signature(), Signature::of(ids.iter().copied()));
            assert!(entry.ids().eq(ids) && entry.permissions().eq(permissions));
            entry.prefetch(&key("photos", "a/ä"));
        }
    }

    #[test]
    fn an_entry_matches_only_its_own_key() {
        let made = |of: &Key<'_>| CachedPrefix::new(of, &[DirectoryId(1), DirectoryId(2)], &[]);
        let entry = made(&key("ab", "cd/e"));
        assert!(entry.has_key(&key("ab", "cd/e")) && entry.has_same_key(&made(&key("ab", "cd/e"))));
        // The same bytes with another boundary; other bytes of the same length; a longer key.
        for other in [key("abc", "d/e"), key("ab", "cd/f"), key("aa", "cd/e"), key("ab", "cd/ee"), key("ab", "d/e")] {
            assert!(
                !entry.has_key(&other) && !entry.has_same_key(&made(&other)),
                "{:?}",
                (other.namespace, other.prefix)
            );
        }
        assert!(!entry.has_key(&Key { hash: 8, ..key("ab", "cd/e") }));
    }
}
