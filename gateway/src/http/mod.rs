//! HTTP: one listener for the native API (`/v1`) and S3 (everything else), and one for operators. The dispatcher uses only
//! the raw path, so that no router changes a key.

mod drain;
mod hosts;
mod percent;
mod probes;
mod problem;
mod request_context;
mod rest;
mod s3;
mod server;
mod status;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, Method, Response, header, header::AsHeaderName},
    response::IntoResponse,
};
use mantle_tls::Live;
use mantle_types::ErrorCode;
use s3s::service::S3Service;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::Instrument;

#[cfg(fuzzing)]
pub use self::s3::parsers;
use self::{
    hosts::{Hosts, Style},
    problem::Failure,
    request_context::RequestContext,
    server::Accepts,
};
use crate::{
    app::Gateway,
    auth::Credentials,
    config::Config,
    ops::{sweep, volumes},
    waiting::Waiting,
};

pub(crate) struct App {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) credentials: Arc<Credentials>,
}

/// What answers users.
struct Services {
    hosts: Arc<Hosts>,
    region: Arc<str>,
    body_idle: Duration,
    answer_wait: Duration,
    rest: Router,
    s3: S3Service,
}

/// Serves until `stop` resolves; then waits, for at most `shutdown_ms`, for the requests under way.
pub async fn serve(config: &Config, stop: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<()> {
    probes::install_metrics()?;
    let credentials = Arc::new(Credentials::read(&config.credentials_file)?);
    let gateway = Arc::new(Gateway::new(config)?);
    let https = config.https.clone().map(Live::load).transpose().context("https")?;
    let listen =
        async |address| TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"));
    let (listener, probes_listener) = (listen(config.listen).await?, listen(config.probes_listen).await?);
    let (address, probes) = (listener.local_addr()?, probes_listener.local_addr()?);
    tracing::info!(listen = %address, %probes, is_https = https.is_some(), "the gateway answers");
    let services = Arc::new(Services::new(config, gateway.clone(), credentials)?);
    let mut background = spawn_background_tasks(&gateway);
    background.spawn(probes::serve(probes_listener, gateway.clone()));
    background.spawn(probes::keep_metrics());
    if let Some(https) = https.clone() {
        background.spawn(https.watch());
    }
    let stopped = CancellationToken::new();
    let answer = move |request| dispatch(services.clone(), request);
    let accepts = match https {
        None => Accepts::Plain,
        Some(https) if config.plain_http => Accepts::Both(https),
        Some(https) => Accepts::Https(https),
    };
    let server = server::serve(listener, answer, accepts, &config.limits, stopped.clone());
    let grace_ends = async {
        stop.await;
        stopped.cancel();
        tokio::time::sleep(Duration::from_millis(config.limits.shutdown_ms)).await;
    };
    tokio::select! {
        () = server => {}
        () = grace_ends => tracing::info!("requests were still under way when the time for a shutdown ended"),
    }
    tracing::info!("the gateway has stopped");
    Ok(())
}

/// Keeps the lease and the volume, watches grants, refusals, background workers and servers, and sweeps, until the result is dropped.
fn spawn_background_tasks(gateway: &Arc<Gateway>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let [lease, grants, refusals, workers, servers, sweeper, keeper, certificates] = [(); 8].map(|()| gateway.clone());
    tasks.spawn(async move { certificates.watch_certificates().await });
    tasks.spawn(async move { lease.index.keep_lease().await });
    tasks.spawn(async move { grants.store.watch_emit_grants().await });
    tasks.spawn(async move { refusals.store.watch_refusals().await });
    tasks.spawn(async move { workers.store.watch_workers().await });
    tasks.spawn(async move { servers.store.watch_servers().await });
    tasks.spawn(sweep::run(sweeper));
    tasks.spawn(volumes::run(keeper));
    tasks
}

impl Services {
    fn new(config: &Config, gateway: Arc<Gateway>, credentials: Arc<Credentials>) -> anyhow::Result<Self> {
        let app = Arc::new(App { gateway, credentials });
        let hosts = Arc::new(Hosts::new(&config.domains, &config.path_style_hosts)?);
        let rest = rest::router(app.clone());
        let s3 = s3::service(&app, config, hosts.clone(), rest.clone());
        let body_idle = Duration::from_millis(config.limits.body_idle_ms);
        let answer_wait = Duration::from_millis(config.limits.answer_wait_ms);
        Ok(Self { hosts, region: config.region.as_str().into(), body_idle, answer_wait, rest, s3 })
    }
}

async fn dispatch(services: Arc<Services>, request: Request) -> Response<Body> {
    let context = RequestContext::begin(request.headers());
    let span = context.span(request.method().as_str(), request.headers());
    let (idle, waiting) = (services.body_idle, Waiting::new(services.answer_wait));
    let service = |request| answer(&services, context, waiting.clone(), request);
    drain::answer(request, idle, &waiting, service).instrument(span).await
}

async fn answer(
    services: &Services,
    context: RequestContext,
    waiting: Arc<Waiting>,
    mut request: Request,
) -> Response<Body> {
    request.extensions_mut().insert(context.clone());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let style = services.hosts.style_of(request.uri(), request.headers());
    // Where the host's name has the bucket, the path is a key.
    let in_host = matches!(style, Ok(Style::Virtual(_)));
    let is_native = !in_host && is_native(&path);
    let answered = match style {
        Err(refusal) => Err(refusal),
        Ok(_) if is_native && !s3::is_signed(&request) => waiting.answer(native(&services.rest, request)).await,
        Ok(style) => {
            request.extensions_mut().insert(style);
            waiting.answer(s3(services, &context, request)).await
        }
    };
    let response = answered.unwrap_or_else(|refusal| match is_native {
        true => Failure(refusal).into_response(),
        false => s3::refused(&refusal, context.id()),
    });
    let mut response = match response.extensions().get::<Failure>() {
        Some(Failure(error)) => problem::response(error, context.id()),
        None => response,
    };
    if let Ok(id) = HeaderValue::try_from(context.id().to_string()) {
        let name = if is_native { "x-request-id" } else { "x-amz-request-id" };
        response.headers_mut().insert(name, id);
    }
    // The answer to HEAD has no body, so no error document.
    if method == Method::HEAD {
        *response.body_mut() = Body::empty();
    }
    context.end(method.as_str(), &path, &response);
    response
}

fn is_native(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/")
}

async fn native(router: &Router, request: Request) -> Response<Body> {
    let Ok(response) = router.clone().oneshot(request).await;
    response
}

/// A header's value, if it is text.
fn header_text(headers: &HeaderMap, name: impl AsHeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

async fn s3(services: &Services, context: &RequestContext, request: Request) -> Response<Body> {
    let head = *request.method() == Method::HEAD;
    let answer = match s3::prepare(request, &services.region, context.id()) {
        Ok(request) => services.s3.call(request).await,
        Err(refusal) => Ok(refusal),
    };
    let mut response = match answer {
        Ok(response) => s3::explained(response),
        Err(cause) => {
            tracing::error!(?cause, "the S3 service failed");
            return Failure::from(ErrorCode::Internal).into_response();
        }
    };
    // An error document's, which is not sent.
    if head && !response.status().is_success() {
        response.headers_mut().remove(header::CONTENT_TYPE);
    }
    response.map(Body::new)
}
