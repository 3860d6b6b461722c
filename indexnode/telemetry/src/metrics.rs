//! A process's metrics as a table: names, kinds, labels and meanings have one home. The recorder's descriptions come from it,
//! and tests write `docs/metrics.md` from it.

use metrics::{describe_counter, describe_gauge, describe_histogram};

/// One metric.
#[derive(Clone)]
pub struct Metric {
    /// Name, with its unit at the end; a counter's ends in `_total`.
    pub name: &'static str,
    /// How its values are to be read.
    pub kind: Kind,
    /// Labels, comma separated.
    pub labels: &'static str,
    /// What it counts or measures.
    pub meaning: &'static str,
}

/// The kinds of Prometheus.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Only grows, until the process restarts.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution in buckets.
    Histogram,
}

/// A counter: its name ends in `_total`.
pub const fn counter(name: &'static str, labels: &'static str, meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, labels, meaning }
}

/// A gauge.
pub const fn gauge(name: &'static str, labels: &'static str, meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, labels, meaning }
}

/// A histogram.
pub const fn histogram(name: &'static str, labels: &'static str, meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, labels, meaning }
}

/// Tells the recorder what each metric means, and makes those without labels: Prometheus sees them before their first event.
/// The recorder must be installed.
pub fn describe(table: &[Metric]) {
    for &Metric { name, ref kind, labels, meaning } in table {
        let has_one_series = labels.is_empty();
        match kind {
            Kind::Counter => {
                describe_counter!(name, meaning);
                has_one_series.then(|| metrics::counter!(name).increment(0));
            }
            Kind::Gauge => {
                describe_gauge!(name, meaning);
                has_one_series.then(|| metrics::gauge!(name).increment(0.0));
            }
            Kind::Histogram => {
                describe_histogram!(name, meaning);
                has_one_series.then(|| drop(metrics::histogram!(name)));
            }
        }
    }
}

/// The table as Markdown.
pub fn page(table: &[Metric]) -> String {
    let mut page = String::from("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
    for Metric { name, kind, labels, meaning } in table {
        let kind = format!("{kind:?}").to_lowercase();
        page.push_str(&format!("| `{name}` | {kind} | {labels} | {meaning} |\n"));
    }
    page
}

/// For tests: the quoted names in `source` that begin with `prefix` and are not in the table.
pub fn unknown_names(table: &[Metric], source: &str, prefix: &str) -> Vec<String> {
    let quoted = source.split('"').skip(1).step_by(2).filter(|text| text.starts_with(prefix));
    quoted.filter(|name| !table.iter().any(|metric| metric.name == *name)).map(str::to_owned).collect()
}
