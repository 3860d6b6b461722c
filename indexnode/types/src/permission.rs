//! POSIX-like permissions of directories and objects.

use serde::{Deserialize, Serialize};

/// Owner, group and mode bits (`rwxrwxrwx`, 9 bits) of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Permission {
    /// Numeric id of the owning principal.
    pub owner: u32,
    /// Numeric id of the owning group.
    pub group: u32,
    /// Mode bits; only the low nine count.
    pub mode: u16,
}

/// The principal of a call. Uid 0 passes every check, as in POSIX.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// Numeric id of the principal.
    pub uid: u32,
    /// Numeric ids of its groups.
    pub gids: Vec<u32>,
}

/// A kind of access to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// List a directory, read an object.
    Read,
    /// Create, remove or rename entries of a directory; overwrite an object.
    Write,
    /// Pass through a directory to an entry below it.
    Search,
}

impl Permission {
    /// Checks an access of `caller`. The first class that matches decides (POSIX).
    pub fn allows(&self, caller: &Caller, access: Access) -> bool {
        if caller.uid == 0 {
            return true;
        }
        let class = if caller.uid == self.owner {
            self.mode >> 6
        } else if caller.gids.contains(&self.group) {
            self.mode >> 3
        } else {
            self.mode
        };
        let bit = match access {
            Access::Read => 4,
            Access::Write => 2,
            Access::Search => 1,
        };
        class & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_matching_class_decides() {
        let p = Permission { owner: 7, group: 20, mode: 0o075 };
        let owner = Caller { uid: 7, gids: vec![20] };
        let member = Caller { uid: 8, gids: vec![20] };
        let other = Caller { uid: 9, gids: vec![] };
        let root = Caller { uid: 0, gids: vec![] };
        assert!(!p.allows(&owner, Access::Read), "the owner's class is empty, the group's does not help");
        assert!(p.allows(&member, Access::Write));
        assert!(!p.allows(&other, Access::Write));
        assert!(p.allows(&other, Access::Search));
        assert!(p.allows(&root, Access::Write));
    }
}
