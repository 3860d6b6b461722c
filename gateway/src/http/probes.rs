//! Probes and metrics.

use std::sync::OnceLock;

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use mantle_types::{Error, ErrorCode, Result};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::{app::Gateway, store::BATCH_ELEMENTS};

/// Upper bounds of the latency histograms, in seconds.
const LATENCY_BUCKETS_S: &[f64] =
    &[0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const ELEMENTS_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

static METRICS: OnceLock<PrometheusHandle> = OnceLock::new();

/// Installs the recorder, once per process.
pub fn install_metrics() -> anyhow::Result<()> {
    if METRICS.get().is_none() {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), LATENCY_BUCKETS_S)?
            .set_buckets_for_metric(Matcher::Full(BATCH_ELEMENTS.into()), ELEMENTS_BUCKETS)?;
        let _ = METRICS.set(builder.install_recorder()?);
        mantle_telemetry::metrics::describe(crate::metric_table::METRICS);
    }
    Ok(())
}

/// Readiness: the database answers, no role may forge its change stream, and a replica of the index answers.
pub async fn ready(gateway: &Gateway) -> Result<Response> {
    let (database, grants, index) =
        futures::join!(gateway.store.ping(), gateway.store.emit_grants(), gateway.index.is_ready());
    database?;
    let grants = grants?;
    if !grants.is_empty() {
        let roles = grants.join(", ");
        let detail =
            format!("pg_logical_emit_message may be called, and so the change stream forged, by {roles}: revoke it");
        return Err(Error::new(ErrorCode::DatabaseUnavailable, detail));
    }
    if !index {
        return Err(Error::from(ErrorCode::IndexUnavailable));
    }
    Ok(text("text/plain", "ready\n"))
}

pub fn metrics() -> Response {
    let page = METRICS.get().map(PrometheusHandle::render).unwrap_or_default();
    text("text/plain; version=0.0.4", page)
}

pub fn text(content_type: &'static str, body: impl IntoResponse) -> Response {
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}
