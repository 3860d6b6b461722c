//! The listing: one entry a line, `path` or `path<TAB>bytes`; a path that ends in `/` is a directory.
//!
//! Lines are separated by `\n` alone (a `\r` belongs to the name). The last tab of a line separates the size, so a path
//! that contains a tab needs one. The size of a directory is ignored. Lines are bytes until they are checked to be
//! UTF-8. Memory is bounded for any input: only the first [`LINE_BYTES_MAX`] bytes of a line are kept.

use std::io::{self, BufRead, Read};

use mantle_types::limits::KEY_BYTES_MAX;

/// The longest line that can be valid: a key, a tab and the digits of an `i64`.
pub const LINE_BYTES_MAX: usize = KEY_BYTES_MAX + 1 + 19;

pub struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
}

/// One line, without its end. Lines are counted from 1.
pub struct Line<'a> {
    pub number: u64,
    /// The content, cut at [`LINE_BYTES_MAX`].
    pub bytes: &'a [u8],
    pub is_cut: bool,
}

impl<R: BufRead> Lines<R> {
    pub fn new(input: R) -> Self {
        Self { input, line: Vec::with_capacity(LINE_BYTES_MAX + 1), number: 0 }
    }

    /// The next line; `None` at the end. A last line without an end of line counts.
    pub fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.line.clear();
        let taken = (&mut self.input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut self.line)?;
        if taken == 0 {
            return Ok(None);
        }
        self.number += 1;
        let is_ended = self.line.last() == Some(&b'\n');
        let is_cut = !is_ended && self.line.len() > LINE_BYTES_MAX;
        if is_cut {
            self.input.skip_until(b'\n')?;
        }
        if is_cut || is_ended {
            self.line.pop();
        }
        Ok(Some(Line { number: self.number, bytes: &self.line, is_cut }))
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The path inside the namespace, not yet checked against the rules for names.
    pub key: &'a str,
    pub size: Option<i64>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Not UTF-8; the offset of the first bad byte.
    NotUtf8(usize),
    /// The text after the last tab is not a size.
    Size,
    Empty,
    TooLong,
}

impl Line<'_> {
    pub fn parse(&self) -> Result<Item<'_>, Malformed> {
        if self.is_cut {
            return Err(Malformed::TooLong);
        }
        let text = std::str::from_utf8(self.bytes).map_err(|e| Malformed::NotUtf8(e.valid_up_to()))?;
        let (key, size) = match text.rsplit_once('\t') {
            Some((key, digits)) => (key, Some(parse_size(digits).ok_or(Malformed::Size)?)),
            None => (text, None),
        };
        if key.is_empty() { Err(Malformed::Empty) } else { Ok(Item { key, size }) }
    }
}

/// Digits only: the `+5` and `-0` that `parse` takes are not sizes.
fn parse_size(digits: &str) -> Option<i64> {
    if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(input: &[u8]) -> Vec<(u64, Vec<u8>, bool)> {
        let (mut lines, mut out) = (Lines::new(io::BufReader::with_capacity(7, input)), Vec::new());
        while let Some(line) = lines.next().unwrap() {
            out.push((line.number, line.bytes.to_vec(), line.is_cut));
        }
        out
    }

    fn parse(bytes: &[u8]) -> Result<(String, Option<i64>), Malformed> {
        Line { number: 1, bytes, is_cut: false }.parse().map(|item| (item.key.to_owned(), item.size))
    }

    #[test]
    fn lines_are_counted_and_a_last_one_needs_no_end() {
        assert_eq!(all(b""), []);
        assert_eq!(all(b"a\n\nb"), [(1, b"a".to_vec(), false), (2, vec![], false), (3, b"b".to_vec(), false)]);
        assert_eq!(all(b"a\n"), [(1, b"a".to_vec(), false)]);
    }

    #[test]
    fn a_long_line_is_cut_and_the_next_one_is_whole() {
        let longest = vec![b'x'; LINE_BYTES_MAX];
        for (times, is_cut) in [(1, false), (3, true)] {
            let input = [longest.repeat(times), b"\nnext\n".to_vec()].concat();
            assert_eq!(all(&input), [(1, longest.clone(), is_cut), (2, b"next".to_vec(), false)]);
        }
    }

    #[test]
    fn sizes_follow_the_last_tab() {
        assert_eq!(parse(b"a/b"), Ok(("a/b".into(), None)));
        assert_eq!(parse(b"a/b\t17"), Ok(("a/b".into(), Some(17))));
        assert_eq!(parse(b"a\tb\t17"), Ok(("a\tb".into(), Some(17))));
        assert_eq!(parse(b"a\t9223372036854775807"), Ok(("a".into(), Some(i64::MAX))));
        for bad in [&b"a\t"[..], b"a\t-1", b"a\t+1", b"a\t1 ", b"a\tb", b"a\t9223372036854775808"] {
            assert_eq!(parse(bad), Err(Malformed::Size), "{bad:?}");
        }
        assert_eq!([&b""[..], b"\t1"].map(parse), [Err(Malformed::Empty), Err(Malformed::Empty)]);
        assert_eq!(parse(b"ab\xff"), Err(Malformed::NotUtf8(2)));
    }

    proptest! {
        #[test]
        fn no_input_panics_and_no_line_is_lost(input in proptest::collection::vec(any::<u8>(), 0..4000)) {
            let expected = input.split(|b| *b == b'\n').count() - usize::from(input.is_empty() || input.ends_with(b"\n"));
            let (mut lines, mut count) = (Lines::new(&input[..]), 0);
            while let Some(line) = lines.next().unwrap() {
                let _ = line.parse();
                count += 1;
            }
            prop_assert_eq!(count, expected);
        }
    }
}
