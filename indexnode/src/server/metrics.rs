//! Metrics for Prometheus. Gauges are set when the page is rendered. Metrics of a group have its number as a label.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context, Result};
use mantle_types::GroupId;
use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use openraft::async_runtime::watch::WatchReceiver;

use super::{
    metric_table::METRICS,
    status::{resident_bytes, role},
};
use crate::{groups::Groups, node::Node, progress::Received, raft::fault::FaultKind, replica::Replica};

/// The values of the `role` label: the gauge of one of them is 1.
const ROLES: [&str; 4] = ["leader", "follower", "learner", "candidate"];
/// The values of the `reason` label of refused calls.
const REFUSALS: [&str; 2] = ["unauthenticated", "denied"];
const BUCKETS_SECONDS: &[f64] =
    &[0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

pub struct Metrics(PrometheusHandle);

impl Metrics {
    pub fn install() -> Result<Self> {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), BUCKETS_SECONDS)
            .context("metrics")?;
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        // Several replicas in one process (tests) share the first recorder.
        let _ = metrics::set_global_recorder(recorder);
        mantle_telemetry::metrics::describe(METRICS);
        mantle_telemetry::metrics::describe(mantle_tls::metric_table::METRICS);
        for reason in REFUSALS {
            counter!("mantle_index_calls_refused_total", "reason" => reason).increment(0);
        }
        Ok(Self(handle))
    }

    pub fn render(&self, groups: &Groups) -> String {
        gauge!("mantle_index_resident_bytes").set(resident_bytes() as f64);
        groups.all().for_each(|replica| set_readiness(replica));
        for node in groups.all().filter_map(|replica| replica.node()) {
            begin_series(&node.group.to_string());
            set_group_metrics(&node, &node.group.to_string());
            set_source_gauges(&node, &node.group.to_string());
        }
        self.0.run_upkeep();
        self.0.render()
    }
}

pub fn count_lookups(group: GroupId, paths: usize, elapsed: Duration, is_ok: bool) {
    let group = group.to_string();
    histogram!("mantle_index_lookup_seconds", "group" => group.clone()).record(elapsed);
    counter!("mantle_index_lookups_total", "group" => group, "result" => result(is_ok)).increment(paths as u64);
}

pub fn count_await(group: GroupId, elapsed: Duration, is_ok: bool) {
    let group = group.to_string();
    histogram!("mantle_index_await_seconds", "group" => group.clone()).record(elapsed);
    counter!("mantle_index_awaits_total", "group" => group, "result" => result(is_ok)).increment(1);
}

pub fn count_refused(reason: &'static str) {
    counter!("mantle_index_calls_refused_total", "reason" => reason).increment(1);
}

/// Makes the series of a group's calls, which Prometheus then sees before the first call.
fn begin_series(group: &str) {
    for name in ["mantle_index_lookup_seconds", "mantle_index_await_seconds"] {
        drop(histogram!(name, "group" => group.to_owned()));
    }
    for name in ["mantle_index_lookups_total", "mantle_index_awaits_total"] {
        for is_ok in [true, false] {
            counter!(name, "group" => group.to_owned(), "result" => result(is_ok)).increment(0);
        }
    }
}

fn result(is_ok: bool) -> &'static str {
    if is_ok { "ok" } else { "error" }
}

fn set_readiness(replica: &Replica) {
    let (group, readiness) = (replica.group.to_string(), &replica.readiness);
    let kind = readiness.fault().map(|fault| fault.kind);
    for (name, is_so) in [
        ("mantle_index_ready", readiness.why_not().is_none()),
        ("mantle_index_log_lost", kind == Some(FaultKind::LogLost)),
        ("mantle_index_differs", kind.is_some_and(|kind| kind != FaultKind::LogLost)),
    ] {
        gauge!(name, "group" => group.clone()).set(f64::from(u8::from(is_so)));
    }
    counter!("mantle_index_joins_anew_total", "group" => group).absolute(readiness.resets().into());
}

fn set_group_metrics(node: &Node, group: &str) {
    let raft = node.raft.metrics().borrow_watched().clone();
    let positions = *node.state.positions().borrow();
    let (rebuild, cache) = (&node.stream.rebuild, node.state.cache.counters());
    let (cache_entries, cache_bytes) = node.state.cache.size();
    let (epoch, directories, bytes, locks) = {
        let state = node.state.read();
        let index = &state.index;
        (index.epoch().0, index.directories(), index.heap_bytes(), index.locks().len())
    };
    for (name, value) in [
        ("mantle_index_raft_term", raft.current_term),
        ("mantle_index_raft_committed_index", raft.local_committed.map_or(0, |id| id.index)),
        ("mantle_index_raft_last_index", raft.last_log_index.unwrap_or(0)),
        ("mantle_index_raft_snapshot_index", raft.snapshot.map_or(0, |id| id.index)),
        ("mantle_index_raft_applied_index", positions.applied_end.saturating_sub(1)),
        ("mantle_index_serving", u64::from(positions.is_serving)),
        ("mantle_index_leader", u64::from(node.raft.is_leader())),
        ("mantle_index_leader_in_doubt", u64::from(node.leadership().is_some_and(|l| node.is_in_doubt(&l)))),
        ("mantle_index_streaming", u64::from(node.stream.is_streaming())),
        ("mantle_index_epoch", epoch),
        ("mantle_index_directories", directories as u64),
        ("mantle_index_heap_bytes", bytes as u64),
        ("mantle_index_locks", locks as u64),
        ("mantle_index_expired_locks", if node.raft.is_leader() { read(&node.expired_locks) } else { 0 }),
        ("mantle_index_waiters", node.waiters() as u64),
        ("mantle_index_log_bytes", node.log.disk_bytes()),
        ("mantle_index_rebuild_rows", read(&rebuild.rows)),
        ("mantle_index_rebuild_rows_expected", read(&rebuild.rows_expected)),
        ("mantle_index_rebuild_microseconds", read(&rebuild.elapsed_us)),
        ("mantle_index_cache_entries", cache_entries as u64),
        ("mantle_index_cache_bytes", cache_bytes as u64),
    ] {
        gauge!(name, "group" => group.to_owned()).set(value as f64);
    }
    for known in ROLES {
        let is_it = known == role(raft.state);
        gauge!("mantle_index_role", "group" => group.to_owned(), "role" => known).set(f64::from(u8::from(is_it)));
    }
    let (reads, apply) = (&node.reads.counters, &node.state.counters);
    for (name, value) in [
        ("mantle_index_read_index_batches_total", read(&reads.batches)),
        ("mantle_index_read_index_requests_total", read(&reads.requests)),
        ("mantle_index_compared_directories_total", read(&node.stream.compared)),
        ("mantle_index_rebuilds_begun_total", read(&rebuild.begun)),
        ("mantle_index_rebuilds_completed_total", read(&rebuild.completed)),
        ("mantle_index_stream_proposals_total", read(&node.stream.proposals)),
        ("mantle_index_applied_entries_total", read(&apply.entries)),
        ("mantle_index_applied_operations_total", read(&apply.operations)),
        ("mantle_index_apply_busy_microseconds_total", read(&apply.busy_ns) / 1000),
        ("mantle_index_cache_purged_total", read(&cache.purged)),
        ("mantle_index_raft_term_jumps_total", node.terms.jumps()),
    ] {
        counter!(name, "group" => group.to_owned()).absolute(value);
    }
    let lookups =
        [("hit", &cache.hits), ("miss", &cache.misses), ("bypass", &cache.bypasses), ("refused", &cache.refused)];
    for (result, count) in lookups {
        counter!("mantle_index_cache_lookups_total", "group" => group.to_owned(), "result" => result)
            .absolute(read(count));
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Sets the gauges of each source, with its number in `mantle.index_sources()` as a label.
fn set_source_gauges(node: &Node, group: &str) {
    let received = node.stream.received();
    for (source, applied) in node.state.source_ends().borrow().iter() {
        let label = source.0.to_string();
        let read = received.get(source).copied();
        let Received { received, released, is_unprotected } = read.unwrap_or_default();
        for (name, value) in [
            ("mantle_index_applied_lsn", applied.0),
            ("mantle_index_received_lsn", received.0),
            ("mantle_index_released_lsn", released.0),
            ("mantle_index_stream_lag_bytes", received.0.saturating_sub(applied.0)),
            ("mantle_index_gate_held_bytes", received.0.saturating_sub(released.0)),
            ("mantle_index_unprotected", u64::from(is_unprotected)),
            ("mantle_index_source_streaming", u64::from(read.is_some())),
        ] {
            gauge!(name, "group" => group.to_owned(), "source" => label.clone()).set(value as f64);
        }
    }
}
