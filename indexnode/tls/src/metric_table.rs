//! The metrics of this crate; every process that uses it shows them.

use mantle_telemetry::metrics::{Metric, counter, gauge};

/// All of them, as `docs/metrics.md` shows them.
pub const METRICS: &[Metric] = &[
    gauge(
        "mantle_tls_certificate_days",
        "file",
        "Days until the first certificate of a file expires; negative afterwards.",
    ),
    counter(
        "mantle_tls_reloads_total",
        "file",
        "Times that changed certificates were read. Files that are read together count under the first of them.",
    ),
    gauge("mantle_tls_files_refused", "file", "1: the files cannot be used, and the earlier ones stay in use."),
    counter(
        "mantle_tls_connections_total",
        "kind",
        "Connections that the gRPC service accepted: `tls`, `plain`, `without_certificate`; `failed`: the handshake was refused, or too many clients without a role were connected.",
    ),
    gauge(
        "mantle_tls_open_connections",
        "kind",
        "Connections to the gRPC service that are open. Before the phase `strict`, no process may have a `plain` one.",
    ),
];

#[cfg(test)]
mod tests {
    use mantle_telemetry::metrics::{page, unknown_names};

    use super::*;

    #[test]
    fn metrics_page_is_current() {
        mantle_types::pages::assert_section("metrics.md", "tls", &page(METRICS));
    }

    #[test]
    fn every_metric_is_in_the_table() {
        let text = [include_str!("live.rs"), include_str!("server.rs"), include_str!("stream.rs")].concat();
        assert_eq!(unknown_names(METRICS, &text, "mantle_tls_"), Vec::<String>::new());
        assert!(METRICS.iter().all(|metric| text.contains(&format!("{:?}", metric.name))), "one is never set");
    }
}
