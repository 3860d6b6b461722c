//! The lines that were refused or are remarkable: counted for the summary, and written line by line to the report.
//!
//! The report is tab-separated: line number (0: no single line), path, code, reason. In paths, backslash, control
//! characters and bytes that are not UTF-8 are written as `\xNN`, so that a row is always one line of UTF-8.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Write as _},
    path::Path,
};

use mantle_types::ErrorCode;

use super::listing::Malformed;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// Refused: not UTF-8.
    NotUtf8,
    /// Refused: an earlier line has the same path.
    Duplicate,
    /// Refused, for a reason of the error table.
    Refused(&'static str),
    /// Loaded; the path is not ASCII.
    NotAscii,
}

impl Finding {
    pub fn refused(code: ErrorCode) -> Self {
        Self::Refused(code.row().name)
    }

    /// The code in the report. Those of the error table keep their names.
    pub fn code(self) -> &'static str {
        match self {
            Self::NotUtf8 => "not_utf8",
            Self::Duplicate => "duplicate",
            Self::Refused(name) => name,
            Self::NotAscii => "not_ascii",
        }
    }

    pub fn is_refusal(self) -> bool {
        self != Self::NotAscii
    }
}

impl Malformed {
    /// How a malformed line is reported.
    pub fn finding(&self) -> (Finding, String) {
        match self {
            Self::NotUtf8(at) => (Finding::NotUtf8, format!("the line is not UTF-8 from byte {} on", at + 1)),
            Self::Size => (
                Finding::refused(ErrorCode::InvalidArgument),
                "the text after the last tab is not a size in bytes".into(),
            ),
            Self::Empty => (Finding::refused(ErrorCode::InvalidName), "the line has no path".into()),
            Self::TooLong => (Finding::refused(ErrorCode::KeyTooLong), ErrorCode::KeyTooLong.row().meaning.into()),
        }
    }
}

/// Counts of one finding, with the first example.
#[derive(Debug, PartialEq, Eq)]
pub struct Count {
    pub lines: u64,
    pub first_line: u64,
    /// Escaped.
    pub first_path: String,
}

#[derive(Default)]
pub struct Report {
    counts: BTreeMap<Finding, Count>,
    file: Option<BufWriter<File>>,
}

impl Report {
    /// A report that is also written to `path`, if there is one.
    pub fn create(path: Option<&Path>) -> io::Result<Self> {
        let mut file = path.map(File::create).transpose()?.map(BufWriter::new);
        file.as_mut().map_or(Ok(()), |file| writeln!(file, "line\tpath\tcode\treason"))?;
        Ok(Self { counts: BTreeMap::new(), file })
    }

    pub fn add(&mut self, line: u64, path: &[u8], finding: Finding, reason: &str) -> io::Result<()> {
        let escaped = escape(path);
        if let Some(file) = &mut self.file {
            writeln!(file, "{line}\t{escaped}\t{}\t{reason}", finding.code())?;
        }
        self.counts.entry(finding).or_insert(Count { lines: 0, first_line: line, first_path: escaped }).lines += 1;
        Ok(())
    }

    pub fn counts(&self) -> impl Iterator<Item = (Finding, &Count)> {
        self.counts.iter().map(|(finding, count)| (*finding, count))
    }

    pub fn refused(&self) -> u64 {
        self.counts().filter(|(finding, _)| finding.is_refusal()).map(|(_, count)| count.lines).sum()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.flush())
    }
}

fn escape(path: &[u8]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    let mut out = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c == '\\' || c.is_control() {
                true => out += &hex(c.encode_utf8(&mut [0; 4]).as_bytes()),
                false => out.push(c),
            }
        }
        out += &hex(chunk.invalid());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_to_one_line_of_utf8() {
        assert_eq!(escape(b"plain/path"), "plain/path");
        assert_eq!(escape("für/\u{85}".as_bytes()), "für/\\xc2\\x85");
        assert_eq!(escape(b"a\tb\nc\\d\xff\0"), "a\\x09b\\x0ac\\x5cd\\xff\\x00");
    }

    #[test]
    fn findings_are_counted_and_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut report = Report::create(Some(file.path())).unwrap();
        report.add(3, b"a", Finding::Duplicate, "again").unwrap();
        report.add(9, b"b", Finding::Duplicate, "again").unwrap();
        report.add(4, "ä".as_bytes(), Finding::NotAscii, "accepted").unwrap();
        report.flush().unwrap();
        assert_eq!(report.refused(), 2);
        let counts: Vec<_> = report.counts().map(|(f, c)| (f.code(), c.lines, c.first_line)).collect();
        assert_eq!(counts, [("duplicate", 2, 3), ("not_ascii", 1, 4)]);
        let expected =
            "line\tpath\tcode\treason\n3\ta\tduplicate\tagain\n9\tb\tduplicate\tagain\n4\tä\tnot_ascii\taccepted\n";
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), expected);
    }
}
