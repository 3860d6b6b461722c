//! The gateway's metrics. The code sets each one by its name, where the event happens; a test checks that no name is
//! missing here.

use mantle_telemetry::metrics::{Metric, counter, gauge, histogram};

/// Those of every gateway.
pub const METRICS: &[Metric] = &[
    counter("mantle_gateway_requests_total", "verb, code", "Requests answered, by HTTP status."),
    histogram(
        "mantle_gateway_request_seconds",
        "verb",
        "Time from the end of a request's head to the head of the answer.",
    ),
    counter("mantle_gateway_connections_total", "kind", "Connections of clients that were accepted: `tls`, `plain`."),
    gauge(
        "mantle_gateway_open_connections",
        "kind",
        "Connections of clients that are open. While clients change to HTTPS, `plain` ones are left.",
    ),
    histogram("mantle_gateway_index_seconds", "call", "Time of a call to an IndexNode."),
    histogram("mantle_gateway_sql_seconds", "statement", "Time of a statement, without the wait for a connection."),
    counter(
        "mantle_gateway_sql_retries_total",
        "statement",
        "Calls that were sent again one by one, because their batch failed.",
    ),
    histogram("mantle_gateway_batch_elements", "statement", "Calls that shared a statement."),
    gauge("mantle_gateway_batch_waiting", "statement", "Calls that wait for a statement to be sent."),
    counter(
        "mantle_gateway_questions_shared_total",
        "statement",
        "Reads that were answered by another caller's equal read.",
    ),
    counter(
        "mantle_gateway_questions_refused_total",
        "statement",
        "Reads refused with 503, because too many waited or PostgreSQL took too long.",
    ),
    counter(
        "mantle_gateway_lookups_in_database_total",
        "",
        "Paths that were resolved in PostgreSQL, because the index lagged or a rename's lock was on them.",
    ),
    counter(
        "mantle_gateway_final_misses_total",
        "",
        "Paths that do not exist, by the index alone, without PostgreSQL (P58).",
    ),
    counter(
        "mantle_gateway_bytes_missing_total",
        "",
        "Reads of an object whose bytes are not there, answered with 500; the log names the object.",
    ),
    counter("mantle_gateway_departed_total", "", "Requests whose client disconnected before the answer."),
    counter(
        "mantle_gateway_orphans_removed_total",
        "",
        "Files, keys of buckets and uploads that the sweeper removed because no object named them.",
    ),
    gauge(
        "mantle_gateway_stream_forgers",
        "",
        "Roles that may write messages into the change stream and should not (P6). Not 0: the gateway is not ready.",
    ),
    gauge(
        "mantle_gateway_worker_problems",
        "source",
        "Problems of the background worker on a PostgreSQL node: it does not run, or a step keeps failing.",
    ),
    gauge(
        "mantle_gateway_server_problems",
        "source",
        "Problems of a PostgreSQL server: what blocks it, what runs out and what expires (`mantle.server_problems()`).",
    ),
    gauge(
        "mantle_gateway_server_problem",
        "source, problem, culprit",
        "1 for each such problem, by its kind and its culprit (a process id, a prepared transaction, a slot, a \
         limit); the series ends with the problem. Kind `none`: 1 while there is no problem.",
    ),
];

/// Those of a gateway that has a volume. On another, a gauge that is 0 would say that its volume is not mounted.
pub const OF_VOLUMES: &[Metric] = &[
    counter(
        "mantle_gateway_bytes_corrupt_total",
        "",
        "Reads of an object whose bytes in a volume are damaged, answered with 500 or ended short; the log names the \
         object.",
    ),
    gauge(
        "mantle_gateway_volume_bytes",
        "of",
        "Bytes of this gateway's volume: all segments (`volume`), `leased` segments, `used` blocks in these. Of the \
         used: `waiting` (freed, but not reusable yet) and `in_doubt` (of puts whose outcome nobody learned).",
    ),
    gauge("mantle_gateway_volume_mounted", "", "1 while this gateway's volume is mounted."),
    gauge(
        "mantle_gateway_volume_read_only",
        "",
        "1 after a flush of the volume has failed: the volume takes no puts until the gateway restarts.",
    ),
    gauge("mantle_gateway_volume_can_grow", "", "0 while the volume needs more space and cannot get it."),
    gauge(
        "mantle_gateway_scrub_finished_seconds",
        "",
        "Unix time at which the last scrub of the volume ended (`volumes.scrub_interval_s`); 0: none has.",
    ),
    counter("mantle_gateway_scrub_bytes_total", "", "Bytes of objects that the scrub has read again from the disk."),
    gauge(
        "mantle_gateway_scrub_damaged",
        "",
        "Extents that the scrub found damaged, and that a row still names; the log has their locators. A restart does not reset it.",
    ),
    counter(
        "mantle_gateway_frees_refused_total",
        "",
        "Deleted extents whose blocks were not in use, or belonged to another object. Not 0: a bug in Mantle.",
    ),
    counter(
        "mantle_gateway_segments_refused_total",
        "",
        "Segments that were not taken into use, because rows name the same blocks twice, or name bytes that cannot \
         be there. Not 0: a bug in Mantle.",
    ),
];

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use mantle_telemetry::metrics::{page, unknown_names};

    use super::*;

    #[test]
    fn metrics_page_is_current() {
        mantle_types::pages::assert_section("metrics.md", "gateway", &page(METRICS));
        mantle_types::pages::assert_section("metrics.md", "volumes", &page(OF_VOLUMES));
    }

    #[test]
    fn every_metric_is_in_the_table() {
        let mut folders = vec![Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("src")];
        let mut text = String::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                fs::read_to_string(&path).map_or_else(|_| folders.push(path), |source| text.push_str(&source));
            }
        }
        assert_eq!(unknown_names(&[METRICS, OF_VOLUMES].concat(), &text, "mantle_gateway_"), Vec::<String>::new());
    }
}
