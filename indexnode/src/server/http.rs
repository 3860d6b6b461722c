//! Probes and metrics.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use futures::future::join_all;
use tokio::net::TcpListener;

use super::metrics::Metrics;
use crate::{groups::Groups, health::why_not_now};

type Served = (Arc<Groups>, Arc<Metrics>);

pub async fn serve(groups: Arc<Groups>, metrics: Metrics, listener: TcpListener) -> Result<()> {
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(render))
        .with_state((groups, Arc::new(metrics)));
    axum::serve(listener, router).await.context("HTTP service")?;
    bail!("the HTTP service ended")
}

async fn ready(State((groups, _)): State<Served>) -> impl IntoResponse {
    let asked = groups.all().map(|replica| async move { Some((replica.group, why_not_now(replica).await?)) });
    let reasons = join_all(asked).await.into_iter().flatten().map(|(group, why)| format!("group {group}: {why}\n"));
    let reasons: String = reasons.collect();
    if reasons.is_empty() { (StatusCode::OK, "ok\n".to_owned()) } else { (StatusCode::SERVICE_UNAVAILABLE, reasons) }
}

async fn render(State((groups, metrics)): State<Served>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render(&groups))
}
