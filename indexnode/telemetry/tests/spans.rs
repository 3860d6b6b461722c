//! What a process without a collector pays for spans. A test binary of its own, since the log is installed once per process.

use mantle_telemetry::{TARGET, Telemetry, is_traced, tracing};
use tracing_subscriber::EnvFilter;

#[test]
fn without_a_collector_no_span_is_made_that_the_log_does_not_show() {
    let _telemetry = Telemetry::install("test", EnvFilter::new("info,quiet=off"), false).unwrap();
    let own = tracing::debug_span!(target: TARGET, "request");
    assert!(own.is_disabled() && !own.in_scope(is_traced));
    let of_quiet_crate = tracing::info_span!(target: "quiet", "verify");
    assert!(of_quiet_crate.is_disabled() && !of_quiet_crate.in_scope(is_traced));
    assert!(!tracing::info_span!(target: "loud", "verify").is_disabled());
}
