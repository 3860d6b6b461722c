//! Probes and metrics, on an address of their own, because users of objects need not see the state of the service.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
    routing::get,
};
use mantle_types::{Error, ErrorCode, Result};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use uuid::Uuid;

use super::{
    problem,
    request_context::{UNROUTED, requests, seconds},
    rest, s3,
};
use crate::{app::Gateway, store::BATCH_ELEMENTS};

/// Upper bounds of the latency histograms, in seconds.
const LATENCY_BUCKETS_S: &[f64] =
    &[0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const ELEMENTS_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// Verbs beside those of S3 and of the native API.
const OTHER_VERBS: &[&str] = &["complete_multipart_upload", "not_offered", "probe", "rename_object", "unset", UNROUTED];
/// The codes that alerts look for.
const CODES: [u16; 3] = [200, 500, 503];

/// How often values of histograms are sorted into buckets; until then each takes eight bytes.
const UPKEEP: Duration = Duration::from_secs(5);

static METRICS: OnceLock<PrometheusHandle> = OnceLock::new();

/// Installs the recorder, once per process.
pub fn install_metrics() -> anyhow::Result<()> {
    if METRICS.get().is_none() {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), LATENCY_BUCKETS_S)?
            .set_buckets_for_metric(Matcher::Full(BATCH_ELEMENTS.into()), ELEMENTS_BUCKETS)?;
        let _ = METRICS.set(builder.install_recorder()?);
        mantle_telemetry::metrics::describe(crate::metric_table::METRICS);
        mantle_telemetry::metrics::describe(mantle_tls::metric_table::METRICS);
        begin_series();
    }
    Ok(())
}

/// Sorts the values of histograms into their buckets, so that they do not pile up where no one asks for metrics. Never
/// returns.
pub async fn keep_metrics() {
    let mut ticks = tokio::time::interval(UPKEEP);
    loop {
        ticks.tick().await;
        METRICS.get().inspect(|metrics| metrics.run_upkeep());
    }
}

/// Serves `/livez`, `/readyz` and `/metrics`. Never returns.
pub async fn serve(listener: TcpListener, gateway: Arc<Gateway>) {
    // It fails only if it cannot accept, and then tries again.
    let _ = axum::serve(listener, router(gateway)).await;
}

pub fn router(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .route("/livez", get(|| async { text("text/plain", "live\n") }))
        .route("/readyz", get(answer_ready))
        .route("/metrics", get(answer_metrics))
        .with_state(gateway)
}

async fn answer_ready(State(gateway): State<Arc<Gateway>>) -> Response {
    ready(&gateway).await.unwrap_or_else(|error| problem::response(&error, Uuid::now_v7()).into_response())
}

/// Readiness: the database answers and accepts mutations, no role may forge its change stream, a replica of the index
/// answers, and the volume of new bytes is mounted. Answers within seconds, whatever holds the calls of clients.
async fn ready(gateway: &Gateway) -> Result<Response> {
    let (database, index) = futures::join!(gateway.store.ping(), gateway.index.is_ready());
    database?;
    let Some(grants) = gateway.store.emit_grants() else {
        return Err(Error::new(ErrorCode::DatabaseUnavailable, "it is not known yet who may write the change stream"));
    };
    if !grants.is_empty() {
        let roles = grants.join(", ");
        let detail =
            format!("pg_logical_emit_message may be called, and so the change stream forged, by {roles}: revoke it");
        return Err(Error::new(ErrorCode::DatabaseUnavailable, detail));
    }
    let refusals = gateway.store.refusals()?;
    if !refusals.is_empty() {
        return Err(Error::new(
            ErrorCode::DatabaseUnavailable,
            format!("mutations are refused: {}", refusals.join("; ")),
        ));
    }
    if !index {
        return Err(Error::from(ErrorCode::IndexUnavailable));
    }
    gateway.data.is_ready()?;
    Ok(text("text/plain", "ready\n"))
}

async fn answer_metrics(State(gateway): State<Arc<Gateway>>) -> Response {
    let page = METRICS.get().map(PrometheusHandle::render).unwrap_or_default();
    text("text/plain; version=0.0.4", page + &gateway.store.render_server_problems())
}

fn text(content_type: &'static str, body: impl IntoResponse) -> Response {
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// Makes the series of each verb. A series that began with the first failure would
/// not have grown, so no alert would see that failure.
fn begin_series() {
    for verb in [s3::VERBS, rest::VERBS, OTHER_VERBS].into_iter().flatten() {
        CODES.into_iter().for_each(|status| requests(verb, status).increment(0));
        drop(seconds(verb));
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn every_verb_has_series_from_the_start() {
        let mut folders = vec![Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("src/http")];
        let mut set = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let Ok(source) = fs::read_to_string(&path) else {
                    folders.push(path);
                    continue;
                };
                for call in [".verb(\"", "set_verb(\"", "without_parameters(\""] {
                    set.extend(source.split(call).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()));
                }
            }
        }
        set.retain(|verb| !verb.is_empty() && !verb.ends_with('\\'));
        let known: Vec<_> = [s3::VERBS, rest::VERBS, OTHER_VERBS].concat();
        assert!(set.len() > 12, "{set:?}");
        assert_eq!(
            set.iter().filter(|verb| !known.contains(&verb.as_str())).collect::<Vec<_>>(),
            Vec::<&String>::new()
        );
    }
}
