//! One replica: its connection, its stream of lookups, and whether to avoid it for a while.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use hyper_util::rt::TokioIo;
use mantle_telemetry::Propagate;
use mantle_tls::Tls;
use mantle_types::{Error, ErrorCode, GroupId, Result, message::DirectoryRecord};
use parking_lot::Mutex;
use tonic::{
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint, Uri},
};
use tower::service_fn;

use crate::{
    Stub,
    call_stream::CallStream,
    convert::{check_outcome, milliseconds},
    lookup_stream::{Answer, LookupKind, LookupStream},
    model::{Lookup, Status},
    proto::{AwaitRequest, DirectoriesRequest, PrepareRenameRequest, StatusRequest, directories_request::What},
};

/// How long a replica that failed is tried last.
const AVOID: Duration = Duration::from_millis(500);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
const DIRECTORIES_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval and timeout: a connection whose other end is gone silently is closed after twice this time.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// HTTP/2 flow-control windows; the default of 64 KiB costs a round trip per large batch.
const WINDOW_BYTES: u32 = 4 << 20;

/// A channel to a replica's address, which connects when first used and again after a loss; with TLS, if there are certificates.
pub fn connect_lazy(address: &str, window_bytes: u32, tls: Option<Tls>) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|e| {
        Error::new(ErrorCode::InvalidArgument, format!("`{address}` is not the address of an index replica: {e}"))
    })?;
    let address: Arc<str> = address.into();
    let connect = move |_: Uri| {
        let (address, tls) = (address.clone(), tls.clone());
        async move { mantle_tls::connect(&address, tls.as_ref()).await.map(TokioIo::new) }
    };
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .initial_stream_window_size(window_bytes)
        .initial_connection_window_size(window_bytes)
        .connect_with_connector_lazy(service_fn(connect)))
}

pub(crate) struct Replica {
    pub(crate) address: String,
    pub(crate) group: GroupId,
    pub(crate) tls: Option<Tls>,
    stub: Stub,
    lookups: LookupStream,
    /// Lookups that wait for PostgreSQL's position: they hold up no others.
    settling: LookupStream,
    pub(crate) awaits: CallStream<AwaitRequest>,
    pub(crate) prepares: CallStream<PrepareRenameRequest>,
    pending: AtomicUsize,
    /// Until when to avoid the replica. Every lookup reads only the flag, unless it is set.
    avoid_until: Mutex<Option<Instant>>,
    avoids: AtomicBool,
}

/// The queries of a lookup count as pending until it is answered or its caller is gone.
pub(crate) struct Pending<'a>(&'a AtomicUsize, usize);

impl<'a> Pending<'a> {
    fn count(pending: &'a AtomicUsize, queries: usize) -> Self {
        pending.fetch_add(queries, Ordering::Relaxed);
        Self(pending, queries)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Replica {
    pub(crate) fn connect_lazy(address: &str, group: GroupId, tls: Option<Tls>) -> Result<Self> {
        let channel = connect_lazy(address, WINDOW_BYTES, tls.clone())?;
        Ok(Self::new(address.to_owned(), Stub::new(InterceptedService::new(channel, Propagate)), group, tls))
    }

    fn new(address: String, stub: Stub, group: GroupId, tls: Option<Tls>) -> Self {
        let lookups = LookupStream::new(stub.clone(), LookupKind { group, settles: false });
        let settling = LookupStream::new(stub.clone(), LookupKind { group, settles: true });
        Self {
            address,
            group,
            tls,
            awaits: CallStream::new(stub.clone()),
            prepares: CallStream::new(stub.clone()),
            stub,
            lookups,
            settling,
            pending: AtomicUsize::new(0),
            avoid_until: Mutex::new(None),
            avoids: AtomicBool::new(false),
        }
    }

    /// The replica of another group at the same address, over the same connection.
    pub(crate) fn of_group(&self, group: GroupId) -> Self {
        Self::new(self.address.clone(), self.stub.clone(), group, self.tls.clone())
    }

    pub(crate) fn stub(&self) -> Stub {
        self.stub.clone()
    }

    pub(crate) fn count_pending(&self, queries: usize) -> Pending<'_> {
        Pending::count(&self.pending, queries)
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    pub(crate) fn is_avoided(&self) -> bool {
        self.avoids.load(Ordering::Relaxed) && self.avoid_until.lock().is_some_and(|until| Instant::now() < until)
    }

    pub(crate) fn avoid(&self) {
        let mut until = self.avoid_until.lock();
        *until = Some(Instant::now() + AVOID);
        self.avoids.store(true, Ordering::Relaxed);
    }

    /// No longer avoids the replica. Usually the flag is not set, and no lock is taken.
    fn trust(&self) {
        if self.avoids.load(Ordering::Relaxed) {
            let mut until = self.avoid_until.lock();
            *until = None;
            self.avoids.store(false, Ordering::Relaxed);
        }
    }

    /// Sends lookups. After a failure of the replica (not of a path), it is avoided for a while.
    pub(crate) async fn resolve(&self, lookup: Arc<Lookup>, limit: Duration) -> Answer {
        let _pending = self.count_pending(lookup.queries.len());
        let stream = if lookup.settles { &self.settling } else { &self.lookups };
        let answer = stream.submit(lookup, limit).await;
        match &answer.result {
            Ok(_) => self.trust(),
            Err(e) => {
                tracing::debug!(replica = %self.address, error = %e, "lookup failed");
                self.avoid();
            }
        }
        answer
    }

    pub(crate) async fn status(&self) -> Result<Status> {
        let request = StatusRequest { group: self.group.0 };
        self.call(request, STATUS_TIMEOUT, |mut stub, request| async move { stub.status(request).await }).await
    }

    /// Sends a request; waits at most `limit`. A failure without an outcome of the service is `index_unavailable`.
    async fn call<Q, A, Fut>(
        &self,
        request: Q,
        limit: Duration,
        send: impl FnOnce(Stub, tonic::Request<Q>) -> Fut,
    ) -> Result<A>
    where
        Fut: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let mut request = tonic::Request::new(request);
        request.set_timeout(limit);
        let answer = tokio::time::timeout(limit, send(self.stub(), request)).await;
        let answer = answer.map_err(|_| transport_error(&self.address, "no answer in time"))?;
        answer.map(tonic::Response::into_inner).map_err(|status| transport_error(&self.address, status.message()))
    }

    /// This replica's records of directories, and the number of parts of its index.
    pub(crate) async fn directories(&self, what: What) -> Result<(Vec<DirectoryRecord>, u32)> {
        let timeout_ms = milliseconds(DIRECTORIES_TIMEOUT);
        let request = DirectoriesRequest { group: self.group.0, what: Some(what), timeout_ms };
        let answer = self
            .call(request, DIRECTORIES_TIMEOUT, |mut stub, request| async move { stub.directories(request).await })
            .await?;
        check_outcome(answer.outcome.as_ref())?;
        Ok((answer.directories.into_iter().map(DirectoryRecord::from).collect(), answer.parts))
    }
}

pub(crate) fn transport_error(address: &str, why: &str) -> Error {
    Error::new(ErrorCode::IndexUnavailable, format!("{address}: {why}"))
}
