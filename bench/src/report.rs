//! The report: a Markdown page, written as the measurements come, and its plots.

use std::{fmt::Write as _, path::Path};

use anyhow::{Context, Result};

/// A page and the plots that it shows.
#[derive(Default)]
pub struct Report {
    text: String,
    /// File name and SVG text of each plot.
    plots: Vec<(&'static str, String)>,
}

impl Report {
    /// A page that begins with a title, what it measures, and the facts of the run, one a line.
    pub fn new(title: &str, introduction: &str, facts: &[String]) -> Self {
        let mut report = Self { text: format!("# {title}\n\n"), plots: Vec::new() };
        report.paragraph(introduction);
        report.block(&facts.join("\n"));
        report
    }

    /// A heading of the second level; also progress on standard error.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.text, "\n## {text}\n");
        eprintln!("{text}");
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.text, "{text}\n");
    }

    /// Preformatted text.
    pub fn block(&mut self, text: &str) {
        let _ = writeln!(self.text, "```\n{}\n```\n", text.trim_end());
    }

    /// A table; also progress on standard error.
    ///
    /// `headings` has the cells of the first row, separated by ` | `.
    pub fn table<R: AsRef<[String]>>(&mut self, headings: &str, rows: &[R]) {
        let columns = headings.split(" | ").count();
        let _ = writeln!(self.text, "| {headings} |\n|{}", "---|".repeat(columns));
        for row in rows.iter().map(AsRef::as_ref) {
            assert_eq!(row.len(), columns, "{headings}");
            let _ = writeln!(self.text, "| {} |", row.join(" | "));
            eprintln!("  {}", row.join(" · "));
        }
        self.text.push('\n');
    }

    /// Shows a plot that [`save`](Self::save) writes to `file`, beside the page.
    pub fn plot(&mut self, file: &'static str, title: &str, svg: String) {
        let _ = writeln!(self.text, "![{title}]({file})\n");
        self.plots.push((file, svg));
    }

    /// Writes the page and its plots to files, or the page alone to standard output.
    pub fn save(&self, path: Option<&Path>) -> Result<()> {
        let write = |path: &Path, text| std::fs::write(path, text).with_context(|| format!("cannot write {path:?}"));
        let Some(path) = path else {
            print!("{}", self.text);
            return Ok(());
        };
        for (file, svg) in &self.plots {
            write(&path.with_file_name(file), svg)?;
        }
        write(path, &self.text)
    }
}

/// About three significant digits; a dash for no number.
pub fn short(value: f64) -> String {
    match value {
        v if !v.is_finite() => "–".into(),
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// A whole number with commas between the thousands.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!([short(0.123), short(12.34), short(123.4), short(f64::NAN)], ["0.12", "12.3", "123", "–"]);
        assert_eq!([count(0), count(999), count(1_000), count(1_655_516)], ["0", "999", "1,000", "1,655,516"]);
    }

    #[test]
    fn tables_are_markdown() {
        let mut report = Report::default();
        report.table("a | b", &[["1".to_owned(), "2".to_owned()]]);
        assert_eq!(report.text, "| a | b |\n|---|---|\n| 1 | 2 |\n\n");
    }
}
