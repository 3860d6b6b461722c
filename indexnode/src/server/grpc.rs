//! The gRPC server of the process: the service for gateways and the one between replicas.

use std::{io, sync::Arc};

use anyhow::{Context, Result, bail};
use mantle_index_client::proto::index_server::IndexServer;
use mantle_tls::Tls;
use tokio::net::TcpListener;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tracing::Span;

use super::{access::AccessLayer, connection::Incoming, index_service::IndexService, peer_service::PeerService};
use crate::{groups::Groups, proto::peer::peer_server::PeerServer, raft::peers::MESSAGE_BYTES_MAX};

const WINDOW_BYTES: u32 = 16 << 20;
const STREAMS_MAX: u32 = 65_536;

/// The span of a gateway's call, if the gateway traces it. A stream of lookups is of many requests, and has none.
fn span_of(call: &::http::Request<()>) -> Span {
    let method = call.uri().path().strip_prefix("/mantle.index.v1.Index/");
    let traced = method.filter(|_| mantle_telemetry::is_continuation(call.headers()));
    let Some(method) = traced else { return Span::none() };
    let span = tracing::debug_span!(
        target: mantle_telemetry::TARGET,
        "call",
        otel.name = method,
        otel.kind = "server",
        rpc.system = "grpc",
        applied_index = tracing::field::Empty,
    );
    mantle_telemetry::continue_trace(&span, call.headers());
    span
}

/// Serves both services until an error; with TLS, if there are certificates.
pub async fn serve(groups: Arc<Groups>, listener: TcpListener, tls: Option<Tls>) -> Result<()> {
    let access = AccessLayer { phase: tls.as_ref().map(Tls::phase) };
    let peer = PeerServer::new(PeerService::new(groups.clone()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let incoming =
        ReceiverStream::new(mantle_tls::incoming(listener, tls)).map(|accepted| Ok::<_, io::Error>(Incoming(accepted)));
    tonic::transport::Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        // A gateway's waits share one connection; the default of 200 would queue them.
        .max_concurrent_streams(STREAMS_MAX)
        .trace_fn(span_of)
        .layer(access)
        .add_service(IndexServer::new(IndexService::new(groups)))
        .add_service(peer)
        .serve_with_incoming(incoming)
        .await
        .context("gRPC service")?;
    bail!("the gRPC service ended")
}
