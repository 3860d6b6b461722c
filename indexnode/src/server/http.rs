//! Probes and metrics.

use std::{fs, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use tokio::{net::TcpListener, time::timeout};

use crate::replica::Replica;

/// A replica that gets no read index for this long does not serve lookups.
const READY_TIMEOUT: Duration = Duration::from_secs(1);
const PAGE_BYTES: u64 = 4096;

/// Serves `/livez`, `/readyz` and `/metrics`.
pub async fn serve(replica: Arc<Replica>, listener: TcpListener) -> Result<()> {
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(replica);
    axum::serve(listener, router).await.context("HTTP service")
}

async fn ready(State(replica): State<Arc<Replica>>) -> impl IntoResponse {
    match not_ready(&replica).await {
        None => (StatusCode::OK, "ok\n"),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason),
    }
}

/// Why lookups are not answered, if they are not.
async fn not_ready(replica: &Replica) -> Option<&'static str> {
    let Some(node) = replica.node() else { return Some("this replica belongs to no cluster yet\n") };
    if !node.state.positions().borrow().is_serving {
        return Some("the index is being built\n");
    }
    let caught_up = async {
        let log_index = node.reads.read_index().await?;
        node.state.wait_applied(log_index).await;
        Ok::<(), mantle_types::Error>(())
    };
    match timeout(READY_TIMEOUT, caught_up).await {
        Ok(Ok(())) => None,
        Ok(Err(_)) => Some("the group has no leader\n"),
        Err(_) => Some("this replica is behind the leader, or cannot reach it\n"),
    }
}

async fn metrics(State(replica): State<Arc<Replica>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], replica.metrics.render(&replica))
}

/// Resident memory of this process, in bytes; 0 where the system does not say.
pub fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|p| p.parse::<u64>().ok());
    pages.unwrap_or(0) * PAGE_BYTES
}
