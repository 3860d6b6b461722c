//! The summary that an import prints at its end.

use std::{fmt, time::Duration};

use indicatif::HumanCount;
use mantle_index_client::Status;

use super::{load::Loaded, report::Report};

#[derive(Default)]
pub struct Summary {
    pub namespace: String,
    pub lines: u64,
    /// Directories, implied ones included.
    pub directories: Loaded,
    pub objects: Loaded,
    /// Refused and remarkable lines.
    pub report: Report,
    pub has_synthetic_sizes: bool,
    pub seed: u64,
    pub phases: Vec<(&'static str, Duration)>,
    /// Total time from the start of the command.
    pub elapsed: Duration,
    /// The replicas at the end; `None` when no index was named.
    pub replicas: Option<Vec<(String, Status)>>,
}

/// Longest path in the summary, in characters; the report has the whole path.
const PATH_CHARS_MAX: usize = 80;

/// The path, cut at [`PATH_CHARS_MAX`] characters.
fn shortened(path: &str) -> std::borrow::Cow<'_, str> {
    match path.char_indices().nth(PATH_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &path[..end]).into(),
        None => path.into(),
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { directories, objects, .. } = self;
        let entries = directories.inserted + objects.inserted;
        let seconds = self.elapsed.as_secs_f64();
        writeln!(
            f,
            "{}: {} objects and {} directories loaded from {} lines in {seconds:.2} s, {} entries/s end to end",
            self.namespace,
            HumanCount(objects.inserted),
            HumanCount(directories.inserted),
            HumanCount(self.lines),
            HumanCount((entries as f64 / seconds.max(0.001)) as u64)
        )?;
        let phases: Vec<String> =
            self.phases.iter().map(|(name, t)| format!("{name} {:.2} s", t.as_secs_f64())).collect();
        writeln!(f, "  phases         {}", phases.join(" · "))?;
        if self.has_synthetic_sizes {
            writeln!(f, "  sizes          synthetic where the listing gives none (seed {}), labelled so", self.seed)?;
        }
        if directories.existing + objects.existing > 0 {
            let (there, too) = (HumanCount(objects.existing), HumanCount(directories.existing));
            writeln!(f, "  already there  {there} objects, {too} directories")?;
        }
        if objects.repeated > 0 {
            let (indent, repeated) = ("", HumanCount(objects.repeated));
            writeln!(f, "{indent:17}{repeated} of them in calls sent again after a failure, perhaps by this run")?;
        }
        writeln!(f, "  refused        {} lines", HumanCount(self.report.refused()))?;
        for is_refusal in [true, false] {
            for (finding, count) in self.report.counts().filter(|(finding, _)| finding.is_refusal() == is_refusal) {
                let label = if is_refusal { "" } else { "accepted" };
                writeln!(
                    f,
                    "  {label:14} {:>9} {} (first: line {}, {})",
                    HumanCount(count.lines).to_string(),
                    finding.code(),
                    count.first_line,
                    shortened(&count.first_path)
                )?;
            }
        }
        match &self.replicas {
            None => writeln!(f, "  index          not asked: no replica is named (--index, MANTLE_INDEX)"),
            Some(replicas) => {
                let of_one =
                    |(address, status): &(String, Status)| format!("{address} {}", HumanCount(status.directories));
                let (count, each) = (replicas.len(), replicas.iter().map(of_one).collect::<Vec<_>>().join(", "));
                writeln!(f, "  index          applied by all {count} replicas; directories: {each}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_are_cut_between_characters() {
        assert_eq!(shortened(&"ü".repeat(80)), "ü".repeat(80));
        assert_eq!(shortened(&"ü".repeat(81)), "ü".repeat(80) + "…");
    }

    #[test]
    fn the_rate_counts_new_entries_and_the_summary_is_complete() {
        let mut report = Report::default();
        report.add(7, b"a/b", super::super::report::Finding::Duplicate, "again").unwrap();
        let summary = Summary {
            namespace: "debian".into(),
            lines: 1_001,
            directories: Loaded { inserted: 200, existing: 1, repeated: 0 },
            objects: Loaded { inserted: 800, existing: 2, repeated: 2 },
            report,
            has_synthetic_sizes: true,
            elapsed: Duration::from_millis(500),
            ..Summary::default()
        };
        let text = summary.to_string();
        let start = "debian: 800 objects and 200 directories loaded from 1,001 lines in 0.50 s, 2,000 entries/s";
        assert!(text.starts_with(start));
        let parts =
            ["2 objects, 1 directories", "sent again", "refused        1 lines", "1 duplicate (first: line 7, a/b)"];
        for part in parts {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
