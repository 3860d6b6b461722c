//! The context of one request: its id, its verb for metrics, its start. The dispatcher makes it and puts it into the
//! extensions.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use axum::http::{Extensions, HeaderMap, Response};
use mantle_types::{Caller, Error, ErrorCode, Result};
use tracing::{Span, field::Empty};
use uuid::Uuid;

use crate::app::Call;

/// The verb of a request that no operation took.
pub const UNROUTED: &str = "unrouted";

pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A clone shares the request's context.
#[derive(Clone)]
pub struct RequestContext(Arc<Inner>);

struct Inner {
    id: Uuid,
    key: KeyGiven,
    verb: OnceLock<&'static str>,
    started: Instant,
}

#[derive(Clone, Copy)]
enum KeyGiven {
    None,
    Valid,
    Malformed,
}

impl RequestContext {
    /// Begins a request. The gateway's own ids are ordered by time, so that PostgreSQL writes their rows side by side.
    pub fn begin(headers: &HeaderMap) -> Self {
        let given = headers.get(IDEMPOTENCY_KEY).map(|key| key.to_str().ok().and_then(|key| key.parse().ok()));
        let (id, key) = match given {
            None => (Uuid::now_v7(), KeyGiven::None),
            Some(None) => (Uuid::now_v7(), KeyGiven::Malformed),
            Some(Some(id)) => (id, KeyGiven::Valid),
        };
        Self(Arc::new(Inner { id, key, verb: OnceLock::new(), started: Instant::now() }))
    }

    /// The context that the dispatcher put into a request's extensions.
    pub fn of(extensions: &Extensions, headers: &HeaderMap) -> Self {
        extensions.get::<Self>().cloned().unwrap_or_else(|| Self::begin(headers))
    }

    /// The request's span, within the client's trace if it has one.
    pub fn span(&self, method: &str, headers: &HeaderMap) -> Span {
        let span = tracing::debug_span!(
            target: mantle_telemetry::TARGET,
            "request",
            otel.kind = "server",
            http.request.method = method,
            http.response.status_code = Empty,
            mantle.request_id = %self.0.id,
        );
        mantle_telemetry::continue_trace(&span, headers);
        span
    }

    pub fn id(&self) -> Uuid {
        self.0.id
    }

    /// Sets the verb; only the first call counts.
    pub fn set_verb(&self, verb: &'static str) {
        let _ = self.0.verb.set(verb);
    }

    pub fn call(&self, caller: Caller) -> Result<Call> {
        if matches!(self.0.key, KeyGiven::Malformed) {
            return Err(Error::new(ErrorCode::InvalidArgument, "Idempotency-Key must be a UUID"));
        }
        Ok(Call { caller, request: self.0.id, client_key: matches!(self.0.key, KeyGiven::Valid) })
    }

    /// Ends a request: writes metrics and the access log.
    pub fn end<B>(&self, method: &str, path: &str, response: &Response<B>) {
        let verb = self.0.verb.get().copied().unwrap_or(UNROUTED);
        let (status, elapsed) = (response.status().as_u16(), self.0.started.elapsed());
        requests(verb, status).increment(1);
        seconds(verb).record(elapsed);
        // OpenTelemetry has signed numbers; unsigned ones would become text.
        Span::current().record("http.response.status_code", i64::from(status));
        mantle_telemetry::conclude(verb, status >= 500);
        tracing::debug!(target: "mantle_gateway::access", request = %self.0.id, method, path, verb, status, ?elapsed, "request");
    }
}

/// Counter of the answers to a verb, by HTTP status.
pub fn requests(verb: &'static str, status: u16) -> metrics::Counter {
    metrics::counter!("mantle_gateway_requests_total", "verb" => verb, "code" => status.to_string())
}

/// Histogram of a verb's times.
pub fn seconds(verb: &'static str) -> metrics::Histogram {
    metrics::histogram!("mantle_gateway_request_seconds", "verb" => verb)
}
