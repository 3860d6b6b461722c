//! The summary that an import prints at its end.

use std::{collections::BTreeMap, fmt, time::Duration};

use indicatif::HumanCount;
use mantle_index_client::Status;
use serde::Serialize;

use super::{
    load::Loaded,
    report::{Count, Finding, Report},
};

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

/// The answer of `mantle import --json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Answer<'a> {
    /// Name of the namespace.
    namespace: &'a str,
    /// Lines of the listing.
    lines: u64,
    /// Directories, with those that a line only implies.
    directories: Loaded,
    /// Objects.
    objects: Loaded,
    /// Lines that were not loaded.
    refused: u64,
    /// Lines that were refused or are remarkable, by their code.
    findings: Vec<FindingAnswer<'a>>,
    /// The seed of the sizes that were made up; null if there were none.
    synthetic_size_seed: Option<u64>,
    /// Seconds of each phase.
    phase_seconds: BTreeMap<&'static str, f64>,
    /// Seconds of the whole command.
    seconds: f64,
    /// The replicas that have applied everything; null if no replica was named.
    replicas: Option<Vec<ReplicaAnswer<'a>>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FindingAnswer<'a> {
    /// As in the report.
    code: &'static str,
    /// Whether such lines were refused; otherwise they were loaded.
    refused: bool,
    /// Number of such lines.
    lines: u64,
    /// Number of the first such line.
    first_line: u64,
    /// Path of the first such line, written as in the report.
    first_path: &'a str,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReplicaAnswer<'a> {
    /// As it was named.
    address: &'a str,
    /// Directories in the replica's index.
    directories: u64,
}

impl Summary {
    pub fn answer(&self) -> Answer<'_> {
        let replicas = self.replicas.as_ref().map(|replicas| replicas.iter().map(ReplicaAnswer::from).collect());
        Answer {
            namespace: &self.namespace,
            lines: self.lines,
            directories: self.directories,
            objects: self.objects,
            refused: self.report.refused(),
            findings: self.report.counts().map(FindingAnswer::from).collect(),
            synthetic_size_seed: self.has_synthetic_sizes.then_some(self.seed),
            phase_seconds: self.phases.iter().map(|(name, time)| (*name, time.as_secs_f64())).collect(),
            seconds: self.elapsed.as_secs_f64(),
            replicas,
        }
    }
}

impl<'a> From<(Finding, &'a Count)> for FindingAnswer<'a> {
    fn from((finding, count): (Finding, &'a Count)) -> Self {
        let Count { lines, first_line, ref first_path } = *count;
        Self { code: finding.code(), refused: finding.is_refusal(), lines, first_line, first_path }
    }
}

impl<'a> From<&'a (String, Status)> for ReplicaAnswer<'a> {
    fn from((address, status): &'a (String, Status)) -> Self {
        Self { address, directories: status.directories }
    }
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
