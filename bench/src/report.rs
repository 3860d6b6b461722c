//! The report: a Markdown page, written as the measurements come, and its plots.

use std::{fmt::Write as _, path::Path};

use anyhow::{Context, Result};

#[derive(Default)]
pub struct Report {
    text: String,
    /// File name and SVG text of each plot.
    plots: Vec<(&'static str, String)>,
}

impl Report {
    /// A page with its title, its first paragraph, and the facts of its run, one a line.
    pub fn new(title: &str, text: &str, facts: &[String]) -> Self {
        let mut report = Self { text: format!("# {title}\n\n{text}\n\n"), plots: Vec::new() };
        report.block(&facts.join("\n"));
        report
    }

    /// A heading of the second level; also progress on standard error.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.text, "\n## {text}\n");
        eprintln!("{text}");
    }

    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.text, "{text}\n");
    }

    pub fn block(&mut self, text: &str) {
        let _ = writeln!(self.text, "```\n{}\n```\n", text.trim_end());
    }

    /// A table; also progress on standard error. `headings` has the cells of the first row, separated by ` | `.
    pub fn table<const N: usize>(&mut self, headings: &str, rows: &[[String; N]]) {
        debug_assert_eq!(headings.split(" | ").count(), N);
        let _ = writeln!(self.text, "| {headings} |\n|{}", "---|".repeat(N));
        for row in rows {
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

    /// The verdict on a bound, after the sentence that states it.
    pub fn verdict(&mut self, text: &str, held: bool) {
        self.paragraph(&format!("{text} **{}**", if held { "Held." } else { "Not held." }));
    }

    /// The page so far.
    #[cfg(test)]
    pub fn text(&self) -> &str {
        &self.text
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
    if value < 1_000 { value.to_string() } else { format!("{},{:03}", count(value / 1_000), value % 1_000) }
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
        report.table("a | b", &[["1".into(), "2".into()]]);
        assert_eq!(report.text, "| a | b |\n|---|---|\n| 1 | 2 |\n\n");
    }
}
