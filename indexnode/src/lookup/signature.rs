//! Tells at once, in most cases, that two sets of directories have none in common.

use mantle_types::DirectoryId;

use crate::index::mix;

/// One bit for each directory of a set; several directories may share a bit. For a prefix of eight directories and a list of
/// one, nine of ten comparisons need no look at the ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Signature(pub(super) u64);

impl Signature {
    pub(super) fn of(ids: impl IntoIterator<Item = DirectoryId>) -> Self {
        Self(ids.into_iter().fold(0, |bits, id| bits | 1 << (mix(id.0) % 64)))
    }

    /// `false`: no directory is in both sets.
    pub(super) fn may_meet(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn add(&mut self, id: DirectoryId) {
        self.0 |= Self::of([id]).0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_with_a_common_directory_meet_and_most_others_do_not() {
        let prefix = |from: u64| (from..from + 8).map(DirectoryId);
        let of = Signature::of(prefix(100));
        assert!(prefix(100).all(|id| of.may_meet(Signature::of([id]))));
        let mut grown = Signature::default();
        assert!(!grown.may_meet(of));
        grown.add(DirectoryId(107));
        assert!(grown.may_meet(of));
        let met = (1_000..2_000).filter(|id| of.may_meet(Signature::of([DirectoryId(*id)]))).count();
        assert!(met < 200, "{met} of 1,000");
    }
}
