//! The network between the hosts: whole gRPC requests and answers, delayed or lost.
//!
//! Invariant: a message is delivered at most once, at a time that the seed decides. A caller whose message or answer was lost
//! receives an error after [`SILENCE`], as from a connection's keep-alive.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use http_body_util::{BodyExt, Collected};
use mantle_indexnode::raft::peers::{Dial, PeerChannel};
use mantle_types::{Error, ErrorCode};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{sync::oneshot, time::timeout};
use tonic::{Status, body::Body};
use tower::{Service, util::BoxCloneSyncService};

use crate::trace::Trace;

/// Time after which a caller gives up a call whose message was lost.
const SILENCE: Duration = Duration::from_secs(4);

/// Streaming calls. Each message of one is simulated as a call of its own, as an older replica sends it.
const STREAMS: [&str; 2] = ["/Appends", "/ReadIndexes"];

pub type HostId = usize;
/// A whole request.
pub type Request = http::Request<Collected<Bytes>>;
/// A whole answer.
pub type Response = http::Response<Collected<Bytes>>;

pub enum Packet {
    /// A request arrives at a host that serves.
    Request { from: HostId, to: HostId, call: u64, request: Request },
    /// An answer arrives at the host that called.
    Response { call: u64, response: Option<Response> },
}

/// How the links behave.
#[derive(Clone, Debug)]
pub struct Weather {
    /// Share of the messages that are lost.
    pub loss: f64,
    /// Longest usual delay, in milliseconds.
    pub delay_ms: u64,
    /// Share of the messages that take ten times longer.
    pub stragglers: f64,
}

impl Default for Weather {
    fn default() -> Self {
        Self { loss: 0.0, delay_ms: 2, stragglers: 0.0 }
    }
}

struct Call {
    from: HostId,
    to: HostId,
    is_lost: bool,
    answer: oneshot::Sender<Option<Response>>,
}

struct Inner {
    rng: StdRng,
    now_ms: u64,
    sequence: u64,
    /// By time of delivery and order of sending.
    under_way: BTreeMap<(u64, u64), Packet>,
    calls: BTreeMap<u64, Call>,
    /// Cut links, from and to.
    cut: BTreeSet<(HostId, HostId)>,
    weather: Weather,
    addresses: Vec<String>,
}

/// The network of one simulation; clones share it.
#[derive(Clone)]
pub struct Network {
    inner: Arc<Mutex<Inner>>,
    trace: Trace,
}

impl Network {
    /// A network of hosts with these addresses. Hosts after the last one have no address and only call.
    pub fn new(seed: u64, addresses: Vec<String>, trace: Trace) -> Self {
        let inner = Inner {
            rng: StdRng::seed_from_u64(seed ^ 0x6e65_7477_6f72_6b00),
            now_ms: 0,
            sequence: 0,
            under_way: BTreeMap::new(),
            calls: BTreeMap::new(),
            cut: BTreeSet::new(),
            weather: Weather::default(),
            addresses,
        };
        Self { inner: Arc::new(Mutex::new(inner)), trace }
    }

    /// The channel from one host to another.
    pub fn channel(&self, from: HostId, to: HostId) -> PeerChannel {
        BoxCloneSyncService::new(Way { network: self.clone(), from, to })
    }

    /// The dialer of a host's replica.
    pub fn dial(&self, from: HostId) -> Arc<dyn Dial> {
        Arc::new(Dialer { network: self.clone(), from })
    }

    pub fn set_weather(&self, weather: Weather) {
        self.inner.lock().weather = weather;
    }

    /// Cuts or restores the link from one host to another. Messages in transit on a cut link are lost.
    pub fn set_cut(&self, from: HostId, to: HostId, is_cut: bool) {
        let mut inner = self.inner.lock();
        if is_cut {
            inner.cut.insert((from, to));
            inner.lose_under_way(from, to);
        } else {
            inner.cut.remove(&(from, to));
        }
    }

    /// Restores all links.
    pub fn heal(&self) {
        let mut inner = self.inner.lock();
        inner.cut.clear();
        inner.weather = Weather::default();
    }

    /// The next packet that is due at this time.
    pub fn next_due(&self, now_ms: u64) -> Option<Packet> {
        let mut inner = self.inner.lock();
        inner.now_ms = now_ms;
        let entry = inner.under_way.first_entry()?;
        (entry.key().0 <= now_ms).then(|| entry.remove())
    }

    /// Passes an answer to its caller.
    pub fn answer(&self, call: u64, response: Option<Response>) {
        if let Some(call) = self.inner.lock().calls.remove(&call) {
            // The caller may have given up; ignore the send error.
            let _ = call.answer.send(response);
        }
    }

    /// A host's process ended. Its callers receive an error (the kernel resets their connections), or nothing.
    pub fn end_calls_to(&self, host: HostId, tells: bool) {
        let mut inner = self.inner.lock();
        let ids: Vec<u64> = inner.calls.iter().filter(|(_, call)| call.to == host).map(|(id, _)| *id).collect();
        for call in ids {
            if tells {
                inner.send(Some((host, call)), Packet::Response { call, response: None });
            } else if let Some(call) = inner.calls.get_mut(&call) {
                call.is_lost = true;
            }
        }
        inner.calls.retain(|_, call| call.from != host);
        let gone = |packet: &Packet| matches!(packet, Packet::Request { from, .. } if *from == host);
        inner.under_way.retain(|_, packet| !gone(packet));
    }

    /// Sends the answer of a call.
    pub fn respond(&self, call: u64, response: Option<Response>) {
        let mut inner = self.inner.lock();
        let Some(from) = inner.calls.get(&call).map(|c| c.to) else { return };
        inner.send(Some((from, call)), Packet::Response { call, response });
    }

    fn request(&self, from: HostId, to: HostId, request: Request) -> (u64, oneshot::Receiver<Option<Response>>) {
        let (answer, answered) = oneshot::channel();
        let path = request.uri().path().to_owned();
        let mut inner = self.inner.lock();
        inner.sequence += 1;
        let call = inner.sequence;
        inner.calls.insert(call, Call { from, to, is_lost: false, answer });
        self.trace.note(format_args!("{} call {call} {from}->{to} {path}", inner.now_ms));
        inner.send(None, Packet::Request { from, to, call, request });
        (call, answered)
    }

    fn is_lost(&self, call: u64) -> bool {
        self.inner.lock().calls.get(&call).is_none_or(|call| call.is_lost)
    }
}

impl Inner {
    fn lose_under_way(&mut self, from: HostId, to: HostId) {
        let Self { under_way, calls, .. } = self;
        under_way.retain(|_, packet| {
            let (link, id) = match packet {
                Packet::Request { from, to, call, .. } => ((*from, *to), *call),
                Packet::Response { call, .. } => (calls.get(call).map_or((to, from), |c| (c.to, c.from)), *call),
            };
            if link != (from, to) {
                return true;
            }
            if let Some(call) = calls.get_mut(&id) {
                call.is_lost = true;
            }
            false
        });
    }

    /// Sends a packet. An answer comes from `host`.
    fn send(&mut self, answer_from: Option<(HostId, u64)>, packet: Packet) {
        let (from, to, call) = match (&packet, answer_from) {
            (Packet::Request { from, to, call, .. }, _) => (*from, *to, *call),
            (Packet::Response { .. }, Some((from, call))) => {
                let Some(to) = self.calls.get(&call).map(|c| c.from) else { return };
                (from, to, call)
            }
            (Packet::Response { .. }, None) => unreachable!("an answer comes from somewhere"),
        };
        if self.cut.contains(&(from, to)) || self.rng.random_bool(self.weather.loss) {
            if let Some(call) = self.calls.get_mut(&call) {
                call.is_lost = true;
            }
            return;
        }
        let mut delay = self.rng.random_range(0..=self.weather.delay_ms);
        if self.rng.random_bool(self.weather.stragglers) {
            delay *= 10;
        }
        self.sequence += 1;
        self.under_way.insert((self.now_ms + 1 + delay, self.sequence), packet);
    }
}

struct Dialer {
    network: Network,
    from: HostId,
}

impl Dial for Dialer {
    fn channel(&self, address: &str) -> Result<PeerChannel, Error> {
        let to = self.network.inner.lock().addresses.iter().position(|a| a == address);
        let to = to.ok_or_else(|| Error::new(ErrorCode::InvalidArgument, "nobody has this address"))?;
        Ok(self.network.channel(self.from, to))
    }
}

#[derive(Clone)]
struct Way {
    network: Network,
    from: HostId,
    to: HostId,
}

impl Service<http::Request<Body>> for Way {
    type Response = http::Response<Body>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<http::Response<Body>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Self { network, from, to } = self.clone();
        if STREAMS.iter().any(|method| request.uri().path().ends_with(method)) {
            return ready(Ok(Status::unimplemented("only whole messages travel here").into_http())).boxed();
        }
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map_err(io::Error::other)?;
            let (call, mut answered) = network.request(from, to, http::Request::from_parts(parts, body));
            loop {
                match timeout(SILENCE, &mut answered).await {
                    Ok(Ok(Some(response))) => return Ok(response.map(Body::new)),
                    Ok(_) => return Err(io::Error::other("connection refused or reset")),
                    Err(_) if network.is_lost(call) => return Err(io::Error::other("the connection is dead")),
                    Err(_) => {}
                }
            }
        }
        .boxed()
    }
}
