//! One directory in the arena: a fixed header, then its name.
//!
//! | byte | holds |
//! |---|---|
//! | 0 | id |
//! | 8 | pid of its place |
//! | 16 | record version |
//! | 24 | number of child directories |
//! | 28 | index of its permission (31 bits); the highest bit: *displaced* |
//! | 32 | length of the name |
//! | 33 | the name |
//!
//! The namespace is not stored: a directory never leaves it, and every path names it.

use mantle_types::{DirectoryId, PartitionId, limits::NAME_BYTES_MAX};

use super::{arena::CELL_BYTES_MAX, permissions::PermissionIndex};
use crate::prefetch::prefetch_all;

const VERSION: usize = 16;
const CHILDREN: usize = 24;
const PERMISSION: usize = 28;
const NAME_LENGTH: usize = 32;
const NAME: usize = 33;
/// The end of a name of twelve bytes. Most names are not longer.
const USUAL_END: usize = NAME + 12;
const DISPLACED: u32 = 1 << 31;

const _: () = assert!(NAME + NAME_BYTES_MAX <= CELL_BYTES_MAX);
const _: () = assert!(NAME_BYTES_MAX <= u8::MAX as usize);

pub(super) fn cell_bytes(name: &str) -> usize {
    NAME + name.len()
}

#[derive(Clone, Copy)]
pub(super) struct Cell<'a>(pub &'a [u8]);

impl<'a> Cell<'a> {
    fn u64_at(self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    fn u32_at(self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    pub(super) fn id(self) -> DirectoryId {
        DirectoryId(self.u64_at(0))
    }

    pub(super) fn pid(self) -> PartitionId {
        PartitionId(self.u64_at(8))
    }

    pub(super) fn version(self) -> u64 {
        self.u64_at(VERSION)
    }

    pub(super) fn children(self) -> u32 {
        self.u32_at(CHILDREN)
    }

    pub(super) fn permission(self) -> PermissionIndex {
        PermissionIndex(self.u32_at(PERMISSION) & !DISPLACED)
    }

    pub(super) fn is_displaced(self) -> bool {
        self.u32_at(PERMISSION) & DISPLACED != 0
    }

    pub(super) fn name_bytes(self) -> &'a [u8] {
        &self.0[NAME..NAME + usize::from(self.0[NAME_LENGTH])]
    }

    pub(super) fn name(self) -> &'a str {
        std::str::from_utf8(self.name_bytes()).expect("it was written from a str")
    }

    /// Prefetches the cell. Most cells lie in one or two cache lines.
    pub(super) fn prefetch(self) {
        prefetch_all(&self.0[..self.0.len().min(USUAL_END)]);
    }

    pub(super) fn is_at(self, pid: PartitionId, name: &str) -> bool {
        self.pid() == pid && names_equal(self.name_bytes(), name.as_bytes())
    }
}

/// Avoids memcmp for short names: its 32-byte read can touch the next cache line, which was not prefetched.
fn names_equal(left: &[u8], right: &[u8]) -> bool {
    fn ends<const N: usize>(name: &[u8]) -> Option<[[u8; N]; 2]> {
        Some([*name.first_chunk()?, *name.last_chunk()?])
    }
    left.len() == right.len()
        && match left.len() {
            0..4 => left.iter().eq(right),
            4..8 => ends::<4>(left) == ends::<4>(right),
            8..=16 => ends::<8>(left) == ends::<8>(right),
            _ => left == right,
        }
}

pub(super) struct CellMut<'a>(pub &'a mut [u8]);

impl CellMut<'_> {
    pub(super) fn write(&mut self, id: DirectoryId, pid: PartitionId, name: &str) {
        self.0[..8].copy_from_slice(&id.0.to_le_bytes());
        self.0[8..16].copy_from_slice(&pid.0.to_le_bytes());
        self.0[NAME_LENGTH] = name.len() as u8;
        self.0[NAME..NAME + name.len()].copy_from_slice(name.as_bytes());
    }

    pub(super) fn set_version(&mut self, version: u64) {
        self.0[VERSION..VERSION + 8].copy_from_slice(&version.to_le_bytes());
    }

    pub(super) fn set_children(&mut self, children: u32) {
        self.0[CHILDREN..CHILDREN + 4].copy_from_slice(&children.to_le_bytes());
    }

    pub(super) fn set_permission(&mut self, permission: PermissionIndex, is_displaced: bool) {
        let bits = permission.0 | if is_displaced { DISPLACED } else { 0 };
        self.0[PERMISSION..PERMISSION + 4].copy_from_slice(&bits.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_when_every_byte_is() {
        for length in 0..=NAME_BYTES_MAX {
            let name: Vec<u8> = (0..length).map(|at| at as u8).collect();
            assert!(names_equal(&name, &name.clone()));
            assert!(!names_equal(&name, &[name.as_slice(), b"x"].concat()), "{length}: a longer one");
            for at in 0..length {
                let mut other = name.clone();
                other[at] ^= 1;
                assert!(!names_equal(&name, &other), "{length}: byte {at} differs");
            }
        }
    }
}
