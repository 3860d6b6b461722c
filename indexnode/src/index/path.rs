//! A path as it arrives in a request, split only as far as a lookup needs.

use memchr::{memchr, memrchr_iter};

const SEPARATOR: u8 = b'/';

/// A directory's path: components from the root's child down, separated by `/`. Empty for the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path<'a>(pub &'a str);

impl<'a> Path<'a> {
    /// All components.
    pub fn components(self) -> impl Iterator<Item = &'a str> {
        let mut rest = (!self.0.is_empty()).then_some(self);
        std::iter::from_fn(move || {
            let (first, below) = rest?.split_first();
            rest = below;
            Some(first)
        })
    }

    /// The first component of a path that is not the root's, and the path below it, if any. (Two separators in a row
    /// enclose an empty component; no directory has that name.)
    pub(super) fn split_first(self) -> (&'a str, Option<Self>) {
        match memchr(SEPARATOR, self.0.as_bytes()) {
            Some(at) => (&self.0[..at], Some(Path(&self.0[at + 1..]))),
            None => (self.0, None),
        }
    }

    /// Splits off the last `levels` components. `None` if nothing is left above them.
    pub fn cut(self, levels: usize) -> Option<(Self, Self)> {
        let at = memrchr_iter(SEPARATOR, self.0.as_bytes()).nth(levels.checked_sub(1)?)?;
        Some((Path(&self.0[..at]), Path(&self.0[at + 1..])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_split_at_separators() {
        assert_eq!(Path("").components().count(), 0);
        for path in ["a", "a/bc/d", "\u{e4}/b", "a//b", "/", "a/"] {
            assert!(Path(path).components().eq(path.split('/')), "{path:?}");
        }
    }

    #[test]
    fn a_cut_splits_off_the_last_levels() {
        let cut = |path: &'static str, levels| Path(path).cut(levels).map(|(above, below)| (above.0, below.0));
        assert_eq!(cut("a/b/c/d", 1), Some(("a/b/c", "d")));
        assert_eq!(cut("a/b/c/d", 3), Some(("a", "b/c/d")));
        for (path, levels) in [("a/b/c/d", 4), ("a/b/c/d", 0), ("a", 1), ("", 1)] {
            assert_eq!(cut(path, levels), None, "{path:?} {levels}");
        }
    }
}
