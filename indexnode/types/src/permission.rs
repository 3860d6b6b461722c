//! POSIX-like permissions of directories and objects, and the rules of who may do what. Every rule is here and nowhere else:
//! the gateway, the index and the SQL verbs call these functions. docs/permissions.md has them as one table.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorCode};

/// The mode bit of a directory in which only owners remove and replace entries (`S_ISVTX`).
pub const STICKY: u16 = 0o1000;

/// Owner, group and mode bits of one entry: `rwxrwxrwx`, and [`STICKY`] above them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Permission {
    /// Numeric id of the owning principal.
    pub owner: u32,
    /// Numeric id of the owning group.
    pub group: u32,
    /// Mode bits.
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

/// What a change of attributes changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct NewAttributes {
    pub owner: Option<u32>,
    pub group: Option<u32>,
    pub mode: Option<u16>,
    /// User metadata, tags and what S3 keeps besides.
    pub has_metadata: bool,
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

    /// Whether the caller owns the entry; uid 0 owns everything.
    pub fn is_owned_by(&self, caller: &Caller) -> bool {
        caller.uid == 0 || caller.uid == self.owner
    }

    /// Whether the caller may read an object's bytes, and of any entry the etag, content type and metadata.
    pub fn may_read(&self, caller: &Caller) -> bool {
        self.allows(caller, Access::Read)
    }

    /// Of a directory: whether the caller finds an entry whose name it knows.
    pub fn may_search(&self, caller: &Caller) -> bool {
        self.allows(caller, Access::Search)
    }

    /// Of a directory: whether the caller may see its entries with their attributes.
    pub fn may_list(&self, caller: &Caller) -> bool {
        self.may_read(caller) && self.may_search(caller)
    }

    /// Of a directory: whether the caller may make entries in it.
    pub fn may_create(&self, caller: &Caller) -> bool {
        self.allows(caller, Access::Write) && self.may_search(caller)
    }

    /// Of a directory: whether its sticky bit lets the caller remove or replace an entry of this owner.
    pub fn sticky_allows(&self, caller: &Caller, owner: u32) -> bool {
        self.mode & STICKY == 0 || self.is_owned_by(caller) || caller.uid == owner
    }

    /// Of a directory: whether the caller may remove an entry of this owner, or move it away.
    pub fn may_remove(&self, caller: &Caller, owner: u32) -> bool {
        self.may_create(caller) && self.sticky_allows(caller, owner)
    }

    /// Of a directory: whether the caller may replace this object in it. The object keeps its owner, group and mode, so
    /// writing the object decides, not writing the directory.
    pub fn may_replace(&self, caller: &Caller, object: &Self) -> bool {
        self.may_search(caller) && object.may_describe(caller) && self.sticky_allows(caller, object.owner)
    }

    /// Whether the caller may write to the entry itself: an object's bytes, an entry's metadata. The owner may always,
    /// because it could allow itself to.
    pub fn may_describe(&self, caller: &Caller) -> bool {
        self.is_owned_by(caller) || self.allows(caller, Access::Write)
    }

    /// Of a directory: whether the caller may remove everything in it without looking at each entry's owner.
    pub fn may_empty(&self, caller: &Caller) -> bool {
        self.may_list(caller) && self.may_create(caller) && (self.mode & STICKY == 0 || self.is_owned_by(caller))
    }

    /// Why the caller may not change these attributes of the entry, if it may not.
    pub fn refuses_attributes(&self, caller: &Caller, new: &NewAttributes) -> Option<&'static str> {
        if caller.uid == 0 {
            return None;
        }
        let is_owner = self.is_owned_by(caller);
        if new.has_metadata && !self.may_describe(caller) {
            return Some("the caller may not write to the entry");
        }
        if new.owner.is_some_and(|owner| owner != self.owner) {
            return Some("only uid 0 may change the owner");
        }
        if !is_owner && (new.owner.is_some() || new.group.is_some() || new.mode.is_some()) {
            return Some("only the owner may change owner, group and mode");
        }
        if new.group.is_some_and(|group| group != self.group && !caller.gids.contains(&group)) {
            return Some("the caller is not in the new group");
        }
        None
    }
}

/// As the SQL verbs take it: owner, group and mode, `1001,100,493`.
impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", self.owner, self.group, self.mode)
    }
}

impl FromStr for Permission {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut numbers = text.splitn(3, ',');
        let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
        let parsed = (|| Some(Self { owner: next()?, group: next()?, mode: u16::try_from(next()?).ok()? }))();
        parsed.ok_or_else(|| Error::new(ErrorCode::InvalidArgument, "a permission is `owner,group,mode`"))
    }
}

/// As the SQL verbs take it: the uid, then the groups, `1001,100,20`.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.uid)?;
        self.gids.iter().try_for_each(|gid| write!(f, ",{gid}"))
    }
}

impl FromStr for Caller {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut numbers = text.split(',').map(str::parse::<u32>);
        let uid = numbers.next().and_then(Result::ok);
        let gids = numbers.collect::<Result<Vec<_>, _>>().ok();
        uid.zip(gids)
            .map(|(uid, gids)| Self { uid, gids })
            .ok_or_else(|| Error::new(ErrorCode::InvalidArgument, "a caller is `uid,gid,…`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 7;
    const GROUP: u32 = 20;

    fn caller(uid: u32, gids: &[u32]) -> Caller {
        Caller { uid, gids: gids.to_vec() }
    }

    fn of(mode: u16) -> Permission {
        Permission { owner: OWNER, group: GROUP, mode }
    }

    #[test]
    fn first_matching_class_decides() {
        let p = of(0o075);
        let (owner, member) = (caller(OWNER, &[GROUP]), caller(8, &[GROUP]));
        let (other, root) = (caller(9, &[]), caller(0, &[]));
        assert!(!p.allows(&owner, Access::Read), "the owner's class is empty, the group's does not help");
        assert!(p.allows(&member, Access::Write));
        assert!(!p.allows(&other, Access::Write));
        assert!(p.allows(&other, Access::Search));
        assert!(p.allows(&root, Access::Write));
    }

    #[test]
    fn the_sticky_bit_leaves_entries_to_their_owners() {
        let (other, root) = (caller(9, &[]), caller(0, &[]));
        let sticky = of(0o1777);
        assert!(of(0o777).may_remove(&other, 5) && !sticky.may_remove(&other, 5));
        assert!(
            sticky.may_remove(&other, 9) && sticky.may_remove(&caller(OWNER, &[]), 5) && sticky.may_remove(&root, 5)
        );
        assert!(sticky.may_create(&other) && !of(0o1775).may_remove(&other, 9));
        let object = Permission { owner: 5, group: 5, mode: 0o666 };
        assert!(of(0o777).may_replace(&other, &object) && !sticky.may_replace(&other, &object));
        assert!(of(0o777).may_empty(&other) && !sticky.may_empty(&other) && sticky.may_empty(&caller(OWNER, &[])));
    }

    #[test]
    fn replacing_needs_the_object_and_not_the_directory() {
        let object = |mode| Permission { owner: 5, group: 5, mode };
        let (owner, other) = (caller(5, &[]), caller(9, &[]));
        assert!(of(0o711).may_replace(&owner, &object(0o400)), "ownership is enough");
        assert!(of(0o711).may_replace(&other, &object(0o602)) && !of(0o711).may_replace(&other, &object(0o600)));
        assert!(!of(0o766).may_replace(&other, &object(0o666)), "without search nothing is reached");
    }

    #[test]
    fn attributes_belong_to_the_owner() {
        let entry = of(0o664);
        let refused = |who: &Caller, new: NewAttributes| entry.refuses_attributes(who, &new).is_some();
        let (owner, member) = (caller(OWNER, &[GROUP, 30]), caller(8, &[GROUP]));
        let mode = NewAttributes { mode: Some(0o600), ..NewAttributes::default() };
        let group = |group| NewAttributes { group: Some(group), ..NewAttributes::default() };
        let new_owner = NewAttributes { owner: Some(8), ..NewAttributes::default() };
        let metadata = NewAttributes { has_metadata: true, ..NewAttributes::default() };
        assert!(!refused(&owner, mode) && refused(&member, mode) && !refused(&caller(0, &[]), mode));
        assert!(!refused(&owner, group(30)) && refused(&owner, group(31)) && refused(&member, group(GROUP)));
        assert!(refused(&owner, new_owner) && !refused(&caller(0, &[]), new_owner));
        assert!(!refused(&owner, metadata) && !refused(&member, metadata) && refused(&caller(9, &[]), metadata));
    }

    #[test]
    fn texts_are_read_as_they_are_written() {
        let (permission, who) = (of(0o1755), caller(7, &[20, 21]));
        assert_eq!(permission.to_string().parse(), Ok(permission));
        assert_eq!(who.to_string().parse(), Ok(who));
        assert_eq!("7".parse(), Ok(caller(7, &[])));
        for bad in ["", "1", "1,2", "1,2,x", "1,2,65536", "-1,2,3", "1,2,3,4"] {
            assert!(bad.parse::<Permission>().is_err(), "{bad}");
        }
        for bad in ["", "x", "1,", "1,-2", "1,2,x"] {
            assert!(bad.parse::<Caller>().is_err(), "{bad}");
        }
    }
}
