//! The gateway's metrics. Each is set where its event happens, by its name; a test holds that no name is missing here.

use mantle_telemetry::metrics::{Kind, Metric};

/// All of them, as `docs/metrics.md` shows them.
pub const METRICS: &[Metric] = &[
    Metric {
        name: "mantle_gateway_requests_total",
        kind: Kind::Counter,
        labels: "verb, code",
        meaning: "Requests answered, by HTTP status.",
    },
    Metric {
        name: "mantle_gateway_request_seconds",
        kind: Kind::Histogram,
        labels: "verb",
        meaning: "Time from a request's head to its answer's.",
    },
    Metric {
        name: "mantle_gateway_index_seconds",
        kind: Kind::Histogram,
        labels: "call",
        meaning: "Time of a call of the IndexNode.",
    },
    Metric {
        name: "mantle_gateway_sql_seconds",
        kind: Kind::Histogram,
        labels: "statement",
        meaning: "Time of a statement, the wait for a connection apart.",
    },
    Metric {
        name: "mantle_gateway_sql_retries_total",
        kind: Kind::Counter,
        labels: "statement",
        meaning: "Calls that were sent again, singly, after their batch failed.",
    },
    Metric {
        name: "mantle_gateway_batch_elements",
        kind: Kind::Histogram,
        labels: "statement",
        meaning: "Calls that went together in one statement.",
    },
    Metric {
        name: "mantle_gateway_batch_waiting",
        kind: Kind::Gauge,
        labels: "statement",
        meaning: "Calls that wait for a statement to be sent.",
    },
    Metric {
        name: "mantle_gateway_questions_shared_total",
        kind: Kind::Counter,
        labels: "statement",
        meaning: "Reads that were answered by another caller's equal read.",
    },
    Metric {
        name: "mantle_gateway_questions_refused_total",
        kind: Kind::Counter,
        labels: "statement",
        meaning: "Reads refused with 503, because too many waited or PostgreSQL took too long.",
    },
    Metric {
        name: "mantle_gateway_lookups_in_database_total",
        kind: Kind::Counter,
        labels: "",
        meaning: "Paths that were resolved in PostgreSQL, because the index did not have them or a rename's lock was on them.",
    },
    Metric {
        name: "mantle_gateway_departed_total",
        kind: Kind::Counter,
        labels: "",
        meaning: "Requests whose client went away before the answer.",
    },
    Metric {
        name: "mantle_gateway_orphans_removed_total",
        kind: Kind::Counter,
        labels: "",
        meaning: "Files of bytes that no object named, removed by the sweeper.",
    },
    Metric {
        name: "mantle_gateway_stream_forgers",
        kind: Kind::Gauge,
        labels: "",
        meaning: "Roles that may write messages into the change stream and should not (P6). Not 0: the gateway is not ready.",
    },
];

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use mantle_telemetry::metrics::{page, unknown_names};

    use super::*;

    fn sources(folder: &Path, text: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, text);
            } else {
                text.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }

    #[test]
    fn metrics_page_is_current() {
        mantle_types::pages::assert_section("metrics.md", "gateway", &page(METRICS));
    }

    #[test]
    fn every_metric_is_in_the_table() {
        let mut text = String::new();
        sources(&Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("src"), &mut text);
        assert_eq!(unknown_names(METRICS, &text, "mantle_gateway_"), [String::new(); 0]);
    }
}
