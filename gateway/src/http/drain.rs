//! Handles the part of a request's body that a service has not read. If a connection closes while its client still
//! sends, the client may never see the answer. If the connection stays open, the rest of the body would be taken for
//! the next request. So the rest is read, up to a bound, or the answer says that the connection closes.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, BodyDataStream, Bytes, HttpBody},
    extract::Request,
    http::{HeaderValue, Response, Version, header},
};
use futures::StreamExt;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep, timeout};

use crate::waiting::{Pause, Waiting};

/// Most bytes that are read in vain, and how long that may take.
const BYTES_MAX: usize = 16 << 20;
const TIME_MAX: Duration = Duration::from_secs(5);

/// A body brought no byte for too long.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the request's body brought no byte for too long")]
pub struct BodyIdle;

/// A body that goes back when its reader drops it.
struct Lent {
    body: Option<Body>,
    idle: Duration,
    /// Runs while the next byte is awaited; this does not count as the request's time.
    timer: Option<(Pin<Box<Sleep>>, Pause)>,
    waiting: Arc<Waiting>,
    rest: Rest,
}

/// The rest of a body, once its reader is done.
#[derive(Clone, Default)]
struct Rest(Arc<Mutex<Returned>>);

#[derive(Default)]
struct Returned {
    body: Option<Body>,
    /// The reader has asked for bytes. Until then a client that waits for `100 Continue` sends none.
    is_begun: bool,
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.rest.0.lock().is_begun = true;
        let Self { body, idle, timer, waiting, .. } = &mut *self;
        let Some(body) = body else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            *timer = None;
            return Poll::Ready(frame);
        }
        let (timer, _) = timer.get_or_insert_with(|| (Box::pin(sleep(*idle)), waiting.pause()));
        timer.as_mut().poll(cx).map(|()| Some(Err(axum::Error::new(BodyIdle))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.rest.0.lock().body = self.body.take();
    }
}

/// Answers a request, and then deals with what the service has left of its body. A body that brings no byte for `idle` fails
/// with [`BodyIdle`].
pub async fn answer<Answer>(
    request: Request,
    idle: Duration,
    waiting: &Arc<Waiting>,
    service: impl FnOnce(Request) -> Answer,
) -> Response<Body>
where
    Answer: Future<Output = Response<Body>>,
{
    // Nothing can be left of no body.
    if request.body().is_end_stream() {
        return service(request).await;
    }
    let rest = Rest::default();
    let (version, waits) = (request.version(), request.headers().contains_key(header::EXPECT));
    let lend = |body| Lent { body: Some(body), idle, timer: None, waiting: waiting.clone(), rest: rest.clone() };
    let mut response = service(request.map(|body| Body::new(lend(body)))).await;
    let Returned { body, is_begun } = std::mem::take(&mut *rest.0.lock());
    let Some(body) = body.filter(|body| !body.is_end_stream()) else { return response };
    let is_read = (is_begun || !waits) && timeout(TIME_MAX, read(body.into_data_stream())).await.unwrap_or(false);
    if !is_read && version <= Version::HTTP_11 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Reads a body in vain; false if it is too long or breaks off.
async fn read(mut body: BodyDataStream) -> bool {
    let mut bytes = 0;
    while let Some(chunk) = body.next().await {
        let Ok(chunk) = chunk else { return false };
        bytes += chunk.len();
        if bytes > BYTES_MAX {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(chunks: usize, expects: bool) -> (Request, Arc<Mutex<usize>>) {
        let read = Arc::new(Mutex::new(0));
        let counted = read.clone();
        let chunks = futures::stream::iter(0..chunks).map(move |_| {
            *counted.lock() += 1;
            Ok::<_, std::io::Error>(Bytes::from_static(&[0; 1 << 20]))
        });
        let mut request = Request::new(Body::from_stream(chunks));
        if expects {
            request.headers_mut().insert(header::EXPECT, HeaderValue::from_static("100-continue"));
        }
        (request, read)
    }

    const IDLE: Duration = Duration::from_secs(60);

    fn waiting() -> Arc<Waiting> {
        Waiting::new(2 * IDLE)
    }

    async fn refuse(request: Request) -> Response<Body> {
        drop(request);
        Response::new(Body::empty())
    }

    #[tokio::test]
    async fn the_rest_is_read_within_bounds() {
        for (chunks, read_max, closes) in [(0, 0, false), (8, 8, false), (1000, 17, true)] {
            let (request, read) = request(chunks, false);
            let response = answer(request, IDLE, &waiting(), refuse).await;
            assert_eq!(*read.lock(), read_max);
            assert_eq!(response.headers().contains_key(header::CONNECTION), closes, "{chunks}");
        }
    }

    #[tokio::test]
    async fn a_client_that_waits_is_not_invited() {
        let (request, read) = request(8, true);
        let response = answer(request, IDLE, &waiting(), refuse).await;
        assert_eq!((*read.lock(), &response.headers()[header::CONNECTION]), (0, &HeaderValue::from_static("close")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stands_still_fails() {
        let request = Request::new(Body::from_stream(futures::stream::pending::<std::io::Result<Bytes>>()));
        let read = |request: Request| async move {
            let error = request.into_body().into_data_stream().next().await.unwrap().unwrap_err();
            Response::new(Body::from(error.to_string()))
        };
        // The time of the request is shorter, and stands still.
        let waiting = Waiting::new(IDLE / 2);
        let response = waiting.answer(answer(request, IDLE, &waiting, read)).await.unwrap();
        let text = axum::body::to_bytes(response.into_body(), 1000).await.unwrap();
        assert_eq!(text, BodyIdle.to_string());
    }
}
