//! Probes and metrics.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use futures::future::join_all;
use tokio::{net::TcpListener, time::timeout};

use super::metrics::Metrics;
use crate::{groups::Groups, replica::Replica};

/// A replica that gets no read index for this long is not ready.
const READY_TIMEOUT: Duration = Duration::from_secs(1);

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
    let asked = groups.all().map(|replica| async move { Some((replica.group, not_ready(replica).await?)) });
    let reasons = join_all(asked).await.into_iter().flatten().map(|(group, why)| format!("group {group}: {why}"));
    let reasons: String = reasons.collect();
    if reasons.is_empty() { (StatusCode::OK, "ok\n".to_owned()) } else { (StatusCode::SERVICE_UNAVAILABLE, reasons) }
}

/// The reason why a replica does not answer lookups; `None` if it does.
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

async fn render(State((groups, metrics)): State<Served>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render(&groups))
}
