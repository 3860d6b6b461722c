//! Permissions, each distinct one stored once: millions of directories share a handful.
//!
//! A reference count frees the index of a permission that no directory has any more.

use std::collections::HashMap;

use mantle_types::Permission;

use super::seed::Seed;

/// Index of a permission in the [`Permissions`] that store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PermissionIndex(pub u32);

pub(super) struct Row {
    permission: Permission,
    pub directories: u32,
}

pub(super) struct Permissions {
    pub rows: Vec<Row>,
    free: Vec<u32>,
    numbers: HashMap<Permission, u32, Seed>,
}

impl Permissions {
    pub(super) fn new(seed: Seed) -> Self {
        Self { rows: Vec::new(), free: Vec::new(), numbers: HashMap::with_hasher(seed) }
    }

    pub(super) fn get(&self, index: PermissionIndex) -> Permission {
        self.rows[index.0 as usize].permission
    }

    /// The index of a permission, counted for one more directory.
    pub(super) fn acquire(&mut self, permission: Permission) -> PermissionIndex {
        if let Some(&number) = self.numbers.get(&permission) {
            self.rows[number as usize].directories += 1;
            return PermissionIndex(number);
        }
        let row = Row { permission, directories: 1 };
        let number = self.free.pop().unwrap_or(self.rows.len() as u32);
        match self.rows.get_mut(number as usize) {
            Some(free) => *free = row,
            None => self.rows.push(row),
        }
        self.numbers.insert(permission, number);
        PermissionIndex(number)
    }

    pub(super) fn release(&mut self, index: PermissionIndex) {
        let row = &mut self.rows[index.0 as usize];
        row.directories -= 1;
        if row.directories == 0 {
            self.numbers.remove(&row.permission);
            self.free.push(index.0);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.rows.capacity() * size_of::<Row>() + self.numbers.capacity() * (size_of::<Permission>() + 8)
    }
}
