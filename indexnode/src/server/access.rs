//! Which gRPC calls a connection may make: each role of a certificate has calls of its own.
//!
//! Without certificates (only on a loopback address) everything is allowed. In the phases before `strict` a plain connection is
//! allowed, and counted.

use std::{
    future::{Ready, ready},
    task::{Context, Poll},
    time::Duration,
};

use futures::future::Either;
use http::{Request, Response};
use mantle_index_client::proto::index_server::IndexServer;
use mantle_telemetry::pace::Pace;
use mantle_tls::{Connection, Identity, Phase, Role, Security};
use tonic::{Status, body::Body, server::NamedService};
use tower::{Layer, Service};

use super::{index_service::IndexService, metrics, peer_service::PeerService};
use crate::proto::peer::peer_server::PeerServer;

const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Characters of a path in the log: the caller chose it.
const LOGGED_PATH_MAX: usize = 100;
const INDEX: &str = <IndexServer<IndexService> as NamedService>::NAME;
const PEER: &str = <PeerServer<PeerService> as NamedService>::NAME;

/// The roles that may call a method of the index service. The peer service is for peers.
const INDEX_METHODS: &[(&str, &[Role])] = &[
    ("Resolve", &[Role::Gateway]),
    ("PrepareRename", &[Role::Gateway]),
    ("PrepareRenames", &[Role::Gateway]),
    ("ReleaseRename", &[Role::Gateway]),
    // An import waits for what it has written.
    ("Await", &[Role::Gateway, Role::Administrator]),
    ("Awaits", &[Role::Gateway, Role::Administrator]),
    ("Status", &[Role::Gateway, Role::Administrator, Role::Peer]),
    ("Members", &[Role::Administrator]),
    ("ChangeMember", &[Role::Administrator]),
    ("Directories", &[Role::Administrator]),
];

fn roles(path: &str) -> &'static [Role] {
    let method = |service: &str| path.strip_prefix('/')?.strip_prefix(service)?.strip_prefix('/');
    if method(PEER).is_some() {
        return &[Role::Peer];
    }
    let row = method(INDEX).and_then(|method| INDEX_METHODS.iter().find(|(name, _)| *name == method));
    row.map_or(&[], |(_, roles)| roles)
}

/// Checks every call before the service sees it.
#[derive(Clone, Copy)]
pub struct AccessLayer {
    /// `None`: the process has no certificates.
    pub phase: Option<Phase>,
}

impl AccessLayer {
    fn check(self, path: &str, connection: Option<&Connection>) -> Result<(), Status> {
        let Some(phase) = self.phase else { return Ok(()) };
        let security = connection.map_or(&Security::Plain, |connection| &connection.security);
        let identity = match security {
            Security::Plain if phase != Phase::Strict => return Ok(()),
            Security::Plain => return Err(Status::unauthenticated("this service speaks TLS only")),
            Security::Tls(None) => return Err(Status::unauthenticated("a client needs a certificate here")),
            Security::Tls(Some(identity)) => identity,
        };
        if roles(path).iter().any(|role| identity.has(*role)) {
            return Ok(());
        }
        Err(denied(identity, roles(path)))
    }
}

fn denied(identity: &Identity, roles: &[Role]) -> Status {
    let units: Vec<_> = roles.iter().map(|role| role.unit()).collect();
    let needed = if units.is_empty() { "no certificate".to_owned() } else { units.join(" or ") };
    Status::permission_denied(format!("the certificate of `{}` may not make this call: {needed} may", identity.name()))
}

/// Logs one refused call a second at most: all are counted, and whoever reaches the port could fill the disk with log.
fn log_refused(path: &str, connection: Option<&Connection>, status: &Status) {
    static LOGGED: Pace = Pace::new(LOG_INTERVAL);
    if !LOGGED.is_due() {
        return;
    }
    let caller = connection.map(|connection| connection.address);
    let path: String = path.chars().take(LOGGED_PATH_MAX).collect();
    tracing::warn!(
        ?caller,
        path,
        reason = status.message(),
        "a call was refused; more within a second are only counted"
    );
}

impl<S> Layer<S> for AccessLayer {
    type Service = Access<S>;

    fn layer(&self, inner: S) -> Access<S> {
        Access { layer: *self, inner }
    }
}

/// A service behind the check.
#[derive(Clone)]
pub struct Access<S> {
    layer: AccessLayer,
    inner: S,
}

impl<S> Service<Request<Body>> for Access<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<Ready<Result<Response<Body>, S::Error>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let connection = request.extensions().get::<Connection>();
        match self.layer.check(request.uri().path(), connection) {
            Ok(()) => Either::Right(self.inner.call(request)),
            Err(status) => {
                let reason = if status.code() == tonic::Code::Unauthenticated { "unauthenticated" } else { "denied" };
                metrics::count_refused(reason);
                log_refused(request.uri().path(), connection, &status);
                Either::Left(ready(Ok(status.into_http())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// The methods of a service in a file of `indexnode/proto/`.
    fn methods(file: &str) -> Vec<String> {
        let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap();
        let text = fs::read_to_string(Path::new(&folder).join("proto").join(file)).unwrap();
        text.split("\n  rpc ").skip(1).map(|rest| rest.split('(').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_method_has_its_roles() {
        let listed: Vec<&str> = INDEX_METHODS.iter().map(|(name, _)| *name).collect();
        assert_eq!(methods("index.proto"), listed);
        for method in methods("index.proto") {
            assert!(!roles(&format!("/{INDEX}/{method}")).is_empty(), "{method}");
        }
        for method in methods("peer.proto") {
            assert_eq!(roles(&format!("/{PEER}/{method}")), [Role::Peer], "{method}");
        }
        for path in [
            "",
            "/",
            "/mantle.index.v1.Index",
            "/mantle.index.v1.Index/",
            "/mantle.index.v1.Index/resolve",
            "/x/Resolve",
        ] {
            assert!(roles(path).is_empty(), "{path}");
        }
    }

    #[test]
    fn a_plain_connection_is_allowed_before_strict_only() {
        let path = format!("/{INDEX}/Resolve");
        let check = |phase| AccessLayer { phase }.check(&path, None).map_err(|status| status.code());
        assert_eq!(check(None), Ok(()));
        assert_eq!(check(Some(Phase::Accept)), Ok(()));
        assert_eq!(check(Some(Phase::Connect)), Ok(()));
        assert_eq!(check(Some(Phase::Strict)), Err(tonic::Code::Unauthenticated));
    }
}
