//! Accepts connections, within bounds: of their number, of the time in which a request's head must arrive, and of the time
//! without a byte of its body. Otherwise a client that says nothing holds a connection for ever, and some thousands of
//! them hold the service.

use std::{sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, sync::Semaphore, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::config::Limits;

/// The pause after a connection that could not be accepted, because there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stopped`, and then until the requests under way are answered.
pub async fn serve(listener: TcpListener, router: Router, limits: &Limits, stopped: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let free = Arc::new(Semaphore::new(limits.connections_max));
    let mut http = http1::Builder::new();
    // Also bounds the time that a connection stays open between two requests.
    http.timer(TokioTimer::new()).header_read_timeout(Duration::from_millis(limits.head_timeout_ms));
    let accept = async {
        loop {
            // Clients over the bound wait in the listener's queue.
            let Ok(place) = free.clone().acquire_owned().await else { return };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(cause) => {
                    tracing::warn!(%cause, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // An answer is written in one piece. Waiting to fill a packet would take longer than the request.
            let _ = stream.set_nodelay(true);
            let service = TowerToHyperService::new(router.clone());
            let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
            tokio::spawn(async move {
                if let Err(cause) = connection.await {
                    tracing::debug!(%cause, "a connection broke");
                }
                drop(place);
            });
        }
    };
    tokio::select! {
        () = accept => {}
        () = stopped.cancelled() => {}
    }
    graceful.shutdown().await;
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        time::timeout,
    };

    use super::*;

    const BOUND: Duration = Duration::from_secs(20);
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

    async fn served(limits: Limits) -> (std::net::SocketAddr, CancellationToken) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stopped) = (listener.local_addr().unwrap(), CancellationToken::new());
        let (router, until) = (Router::new().route("/", get(|| async { "here" })), stopped.clone());
        tokio::spawn(async move { serve(listener, router, &limits, until).await });
        (address, stopped)
    }

    async fn ask(stream: &mut TcpStream) -> String {
        stream.write_all(REQUEST).await.unwrap();
        let mut answer = vec![0; 4096];
        let length = timeout(BOUND, stream.read(&mut answer)).await.unwrap().unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    }

    #[tokio::test]
    async fn clients_that_say_nothing_are_left() {
        let (address, _stopped) = served(Limits { head_timeout_ms: 200, ..Limits::default() }).await;
        for said in [&b""[..], b"GET / HTTP/1.1\r\nhost: x", REQUEST] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(said).await.unwrap();
            let mut answer = Vec::new();
            timeout(BOUND, stream.read_to_end(&mut answer)).await.expect("the connection stays open").unwrap();
        }
    }

    #[tokio::test]
    async fn connections_over_the_bound_wait() {
        let (address, _stopped) = served(Limits { connections_max: 1, ..Limits::default() }).await;
        let mut first = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut first).await.ends_with("here"));
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(REQUEST).await.unwrap();
        let mut byte = [0];
        assert!(timeout(Duration::from_millis(300), second.read(&mut byte)).await.is_err(), "it was answered");
        drop(first);
        assert_eq!(timeout(BOUND, second.read(&mut byte)).await.unwrap().unwrap(), 1);
    }

    #[tokio::test]
    async fn a_shutdown_does_not_wait_for_idle_clients() {
        let (address, stopped) = served(Limits::default()).await;
        let mut client = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut client).await.ends_with("here"));
        let begin = Instant::now();
        stopped.cancel();
        assert_eq!(timeout(BOUND, client.read(&mut [0])).await.unwrap().unwrap(), 0);
        assert!(begin.elapsed() < BOUND);
    }
}
