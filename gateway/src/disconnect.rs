//! Client disconnects during a request. A statement that was sent to PostgreSQL is never cancelled (P18), but after the
//! disconnect the gateway sends no more. P44 has the history that this prevents.

use std::{sync::Arc, time::Duration};

use mantle_types::{Error, ErrorCode, Result};
use tracing::Instrument;

use crate::waiting::Waiting;

/// The time limit of work that belongs to no request; only tests have such work.
const UNBOUNDED: Duration = Duration::from_secs(1 << 30);

/// Dropped with the request's future: its client has disconnected, or was answered that the wait was too long.
struct Client(Option<Arc<Waiting>>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.take().inspect(|waiting| waiting.end());
    }
}

/// Runs a mutation to its end, even when the client disconnects.
pub async fn run_detached<T, E>(work: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Error> + Send + 'static,
{
    let waiting = Waiting::current().unwrap_or_else(|| Waiting::new(UNBOUNDED));
    let mut client = Client(Some(waiting.clone()));
    let answer = tokio::spawn(waiting.scope(work).in_current_span()).await;
    client.0 = None;
    answer.unwrap_or_else(|cause| {
        tracing::error!(%cause, "a request's task failed");
        Err(Error::from(ErrorCode::Internal).into())
    })
}

/// Called before a change is sent: an error if the client has disconnected. Nothing was done then.
pub fn check_client_waits() -> Result<()> {
    if !Waiting::current().is_some_and(|waiting| waiting.is_over()) {
        return Ok(());
    }
    Err(departed())
}

/// The error of a change that was not sent, because nobody waits for it.
pub fn departed() -> Error {
    metrics::counter!("mantle_gateway_departed_total").increment(1);
    Error::new(ErrorCode::DatabaseUnavailable, "the client has gone, and the change was not sent")
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn nothing_is_sent_after_a_client_disconnect() {
        let (resume, resumed) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        let request = tokio::spawn(run_detached(async move {
            let before = check_client_waits();
            let _ = resumed.await;
            let _ = tell.send((before, check_client_waits()));
            Ok::<_, Error>(())
        }));
        tokio::task::yield_now().await;
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
        resume.send(()).unwrap();
        let (before, after) = told.await.unwrap();
        assert_eq!((before.is_ok(), after.map_err(|e| e.code())), (true, Err(ErrorCode::DatabaseUnavailable)));
    }

    #[tokio::test]
    async fn work_without_a_client_is_sent() {
        assert!(check_client_waits().is_ok());
    }
}
