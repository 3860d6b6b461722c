//! The IndexNode's metrics. `metrics.rs` sets them; a test checks that no name is missing here.

use mantle_telemetry::metrics::{Metric, counter, gauge, histogram};

/// All of them, as `docs/metrics.md` shows them.
pub const METRICS: &[Metric] = &[
    counter("mantle_index_lookups_total", "group, result", "Paths looked up, by the result of their batch."),
    histogram("mantle_index_lookup_seconds", "group", "Time of a batch of lookups, the read index included."),
    counter("mantle_index_read_index_batches_total", "group", "Read indexes taken, by the leader itself or from it."),
    counter("mantle_index_read_index_requests_total", "group", "Batches of lookups that waited for a read index."),
    counter(
        "mantle_index_cache_lookups_total",
        "group, result",
        "Lookups in the cache: `hit`, `miss`, `bypass` (the prefix is changing, or the caller may not search it). \
         `refused`: entries that the full cache did not take.",
    ),
    gauge("mantle_index_cache_entries", "group", "Prefixes in the cache."),
    gauge("mantle_index_cache_bytes", "group", "Memory of the cache."),
    counter("mantle_index_cache_purged_total", "group", "Prefixes removed because a directory on them changed."),
    counter(
        "mantle_index_calls_refused_total",
        "reason",
        "gRPC calls refused: `unauthenticated` (no TLS, or no certificate), `denied` (the certificate is not for the \
         call).",
    ),
    counter("mantle_index_awaits_total", "group, result", "Changes that gateways waited for."),
    histogram("mantle_index_await_seconds", "group", "Time that a gateway waited for its change to be applied."),
    gauge("mantle_index_waiters", "group", "Callers that wait for a change to be applied."),
    gauge("mantle_index_serving", "group", "1: the replica has a complete index."),
    gauge(
        "mantle_index_ready",
        "group",
        "1: the replica could answer a lookup at its last check, at most a second ago.",
    ),
    gauge(
        "mantle_index_log_lost",
        "group",
        "1: the replica's folder was replaced by an older copy; the replica joins again under another id (P48).",
    ),
    gauge(
        "mantle_index_differs",
        "group",
        "1: the replica's state differed from the leader's; the replica joins again (P49).",
    ),
    counter(
        "mantle_index_joins_anew_total",
        "group",
        "Times that the replica joined again because of `mantle_index_log_lost` or `mantle_index_differs`.",
    ),
    gauge(
        "mantle_index_leader_in_doubt",
        "group",
        "1: the leader may lack committed entries and answers nothing (P48).",
    ),
    gauge("mantle_index_leader", "group", "1: the replica leads its group."),
    gauge("mantle_index_role", "group, role", "1 for the role that the replica has."),
    gauge("mantle_index_epoch", "group", "Epoch of the last rebuild or recovery (P21, P48)."),
    gauge("mantle_index_directories", "group", "Directories in the index, namespace roots included."),
    gauge("mantle_index_locks", "group", "Locks of prepared renames."),
    gauge(
        "mantle_index_expired_locks",
        "group",
        "On the leader: rename locks that have expired and are not released yet.",
    ),
    gauge("mantle_index_heap_bytes", "group", "Memory of the index's tables."),
    gauge("mantle_index_resident_bytes", "", "Resident memory of the process."),
    gauge("mantle_index_raft_term", "group", "Raft's term."),
    counter(
        "mantle_index_raft_term_jumps_total",
        "group",
        "Messages and answers whose term was more than 100 higher than the replica's: a sign of an old folder, or of a \
         forgery.",
    ),
    gauge("mantle_index_raft_last_index", "group", "Log index of the last entry."),
    gauge("mantle_index_raft_committed_index", "group", "Log index of the last committed entry."),
    gauge("mantle_index_raft_applied_index", "group", "Log index of the last applied entry."),
    gauge("mantle_index_raft_snapshot_index", "group", "Log index that the last snapshot covers."),
    gauge("mantle_index_log_bytes", "group", "Bytes of the Raft log on disk."),
    counter("mantle_index_applied_entries_total", "group", "Log entries applied."),
    counter("mantle_index_applied_operations_total", "group", "Operations on directories applied."),
    counter("mantle_index_apply_busy_microseconds_total", "group", "Time spent on applying log entries."),
    gauge(
        "mantle_index_streaming",
        "group",
        "1: this replica leads and reads the change streams of all nodes that answer.",
    ),
    gauge("mantle_index_source_streaming", "group, source", "1: the change stream of this PostgreSQL node is read."),
    gauge(
        "mantle_index_received_lsn",
        "group, source",
        "WAL position up to which the group has received the node's stream.",
    ),
    gauge("mantle_index_applied_lsn", "group, source", "WAL position of the node up to which the index has applied."),
    gauge("mantle_index_stream_lag_bytes", "group, source", "WAL received from the node and not applied yet."),
    gauge(
        "mantle_index_released_lsn",
        "group, source",
        "WAL position of the node up to which every synchronous standby has flushed (P5).",
    ),
    gauge(
        "mantle_index_gate_held_bytes",
        "group, source",
        "WAL that not every synchronous standby has flushed yet (P5).",
    ),
    gauge("mantle_index_unprotected", "group, source", "1: no synchronous standby; a failover may lose changes."),
    counter("mantle_index_stream_proposals_total", "group", "Log entries proposed for the change streams."),
    counter("mantle_index_compared_directories_total", "group", "Directories compared with PostgreSQL's (P3)."),
    counter("mantle_index_rebuilds_begun_total", "group", "Rebuilds begun."),
    counter("mantle_index_rebuilds_completed_total", "group", "Rebuilds completed."),
    gauge("mantle_index_rebuild_rows", "group", "Directories copied by the last rebuild, or so far by this one."),
    gauge("mantle_index_rebuild_rows_expected", "group", "PostgreSQL's estimate of the directories to copy."),
    gauge("mantle_index_rebuild_microseconds", "group", "Time of the last rebuild, or of this one so far."),
];

#[cfg(test)]
mod tests {
    use mantle_telemetry::metrics::{page, unknown_names};

    use super::*;

    #[test]
    fn metrics_page_is_current() {
        mantle_types::pages::assert_section("metrics.md", "indexnode", &page(METRICS));
    }

    #[test]
    fn every_metric_is_in_the_table() {
        assert_eq!(unknown_names(METRICS, include_str!("metrics.rs"), "mantle_index_"), Vec::<String>::new());
        assert!(
            METRICS.iter().all(|metric| include_str!("metrics.rs").contains(&format!("{:?}", metric.name))),
            "one is never set"
        );
    }
}
