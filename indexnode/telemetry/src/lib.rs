//! The log of a process, and its OpenTelemetry spans: the steps of one request in the gateway, in PostgreSQL as the gateway
//! sees it, and in an IndexNode.
//!
//! Spans are made only if `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` names a collector. They go
//! there over gRPC, with TLS if the endpoint begins with `https` (`collector`). `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_BSP_…` mean
//! what OpenTelemetry says. Without an endpoint a span costs one comparison. A trace goes from process to process in W3C's
//! `traceparent` header.

mod collector;
pub mod metrics;
pub mod pace;
pub mod settings_page;

use std::time::Duration;

use anyhow::{Context as _, Result};
use http::HeaderMap;
use opentelemetry::{
    global,
    trace::{Status as OtelStatus, TraceContextExt as _, TracerProvider as _},
};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_otlp::{SpanExporter, WithTonicConfig};
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tonic::{Request, Status, metadata::MetadataMap, service::Interceptor};
use tracing::{Span, Subscriber, level_filters::LevelFilter};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{
    EnvFilter, Layer, filter::Targets, layer::SubscriberExt as _, registry::LookupSpan, util::SubscriberInitExt as _,
};

/// Target of all spans; their level is `debug`. (`RUST_LOG=mantle_trace=debug` shows them in the log too.)
pub const TARGET: &str = "mantle_trace";
/// At shutdown the last spans are sent for at most this long.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A span for one step of a request, below the current span. No span if the request is not traced. Work for many requests at
/// once belongs to none of them.
#[macro_export]
macro_rules! step {
    ($($fields:tt)*) => {
        if $crate::is_traced() { $crate::tracing::debug_span!(target: $crate::TARGET, $($fields)*) } else { $crate::tracing::Span::none() }
    };
}
#[doc(hidden)]
pub use tracing;

/// Ends with the process: see [`Self::end`].
#[must_use]
pub struct Telemetry(Option<SdkTracerProvider>);

impl Telemetry {
    /// Sends the log to standard error, and spans to the collector that the environment names. `service` is the name in traces
    /// unless `OTEL_SERVICE_NAME` gives another. Call it once, within a tokio runtime. Fails if an endpoint is malformed.
    pub fn install(service: &'static str, log: EnvFilter, has_colors: bool) -> Result<Self> {
        let provider = collector::endpoint().map(|_| provider(service)).transpose()?;
        let spans = provider.as_ref().map(|provider| {
            let filter = Targets::new().with_target(TARGET, LevelFilter::DEBUG);
            tracing_opentelemetry::layer().with_tracer(provider.tracer(service)).with_filter(filter)
        });
        // Two subscribers, and not one with an optional layer: that one has no filter, and so lets every span of other
        // crates be made that has a level of the log.
        let registry = tracing_subscriber::registry();
        match spans {
            Some(spans) => registry.with(spans).with(written(log, has_colors)).try_init(),
            None => registry.with(written(log, has_colors)).try_init(),
        }
        .context("the log")?;
        if provider.is_some() {
            global::set_text_map_propagator(TraceContextPropagator::new());
        }
        Ok(Self(provider))
    }

    /// Sends the spans that are left.
    pub async fn end(self) {
        let Some(provider) = self.0 else { return };
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(END_LIMIT)).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// The log, on standard error.
fn written<S>(filter: EnvFilter, has_colors: bool) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(has_colors).with_filter(filter)
}

fn provider(service: &'static str) -> Result<SdkTracerProvider> {
    let mut exporter = SpanExporter::builder().with_tonic();
    if let Some(tls) = collector::tls()? {
        exporter = exporter.with_tls_config(tls);
    }
    let exporter = exporter.build().context("OTEL_EXPORTER_OTLP_ENDPOINT")?;
    let mut resource = Resource::builder();
    if std::env::var("OTEL_SERVICE_NAME").is_err() {
        resource = resource.with_service_name(service);
    }
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build())
}

/// True if the current span belongs to a trace.
pub fn is_traced() -> bool {
    !Span::current().is_disabled()
}

/// Makes a span part of the trace that the request's headers name, if they name one.
pub fn continue_trace(span: &Span, headers: &HeaderMap) {
    if !span.is_disabled() && is_continuation(headers) {
        let parent = global::get_text_map_propagator(|propagator| propagator.extract(&HeaderExtractor(headers)));
        // Fails if no layer is installed: then the span goes to the log alone.
        let _ = span.set_parent(parent);
    }
}

/// Sets the current span's name and status. (Once other processes continue a span, tracing's fields change neither.)
pub fn conclude(name: &'static str, failed: bool) {
    let span = Span::current();
    if !span.is_disabled() {
        span.context().span().update_name(name);
        if failed {
            span.set_status(OtelStatus::error(""));
        }
    }
}

/// True if the request's headers name a trace.
pub fn is_continuation(headers: &HeaderMap) -> bool {
    headers.contains_key("traceparent")
}

/// Puts the current trace into the metadata of each call that a client makes.
#[derive(Clone, Copy, Debug)]
pub struct Propagate;

impl Interceptor for Propagate {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if is_traced() {
            let mut headers = std::mem::take(request.metadata_mut()).into_headers();
            let context = Span::current().context();
            global::get_text_map_propagator(|propagator| {
                propagator.inject_context(&context, &mut HeaderInjector(&mut headers));
            });
            *request.metadata_mut() = MetadataMap::from_headers(headers);
        }
        Ok(request)
    }
}
