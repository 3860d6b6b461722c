//! The key with which the group signs prepared renames (P31). It is read once per epoch: a restored database may have another
//! key, and its index is rebuilt under a higher epoch.
//!
//! Callers that arrive during a read share it. A new leader has no key yet, and each read opens a session: 64 renames at once
//! used up PostgreSQL's connections.

use std::sync::Arc;

use futures::{
    FutureExt, TryFutureExt,
    future::{BoxFuture, Shared},
};
use mantle_types::Epoch;
use parking_lot::Mutex;

/// `None`: the database has no key yet. The error says why it could not be read.
type Key = Result<Option<Vec<u8>>, Arc<str>>;
type Reading = Shared<BoxFuture<'static, Key>>;

/// The last read, which ended with a key or has not ended.
#[derive(Default)]
pub(crate) struct PrepareKey(Mutex<Option<(Epoch, Reading)>>);

impl PrepareKey {
    /// The key of an epoch; `read` is called unless it is known or being read.
    pub(crate) async fn get<F>(&self, epoch: Epoch, read: impl FnOnce() -> F) -> Key
    where
        F: Future<Output = anyhow::Result<Option<Vec<u8>>>> + Send + 'static,
    {
        let reading = {
            let mut last = self.0.lock();
            match &*last {
                Some((of, reading)) if *of == epoch => reading.clone(),
                _ => {
                    let reading = read().map_err(|e| Arc::from(format!("{e:#}"))).boxed().shared();
                    *last = Some((epoch, reading.clone()));
                    reading
                }
            }
        };
        let key = reading.clone().await;
        if !matches!(key, Ok(Some(_))) {
            // The next caller asks again.
            self.0.lock().take_if(|(_, last)| last.ptr_eq(&reading));
        }
        key
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn callers_at_once_share_a_read_of_their_epoch() {
        let (key, reads, answer) = (PrepareKey::default(), AtomicUsize::new(0), Arc::new(Notify::new()));
        let get = |epoch: u64| {
            let (reads, answer) = (&reads, &answer);
            key.get(Epoch(epoch), move || {
                reads.fetch_add(1, Ordering::SeqCst);
                let answer = answer.clone();
                async move {
                    answer.notified().await;
                    Ok(Some(vec![epoch as u8]))
                }
            })
        };
        let (all, ()) = tokio::join!(join_all((0..64).map(|_| get(1))), async { answer.notify_one() });
        assert!(all.iter().all(|key| *key == Ok(Some(vec![1]))));
        assert_eq!((get(1).await, reads.load(Ordering::SeqCst)), (Ok(Some(vec![1])), 1));
        answer.notify_one();
        assert_eq!((get(2).await, reads.load(Ordering::SeqCst)), (Ok(Some(vec![2])), 2));
    }

    #[tokio::test]
    async fn what_was_not_found_is_asked_again() {
        let key = PrepareKey::default();
        assert_eq!(key.get(Epoch(1), || async { anyhow::bail!("away") }).await, Err("away".into()));
        assert_eq!(key.get(Epoch(1), || async { Ok(None) }).await, Ok(None));
        assert_eq!(key.get(Epoch(1), || async { Ok(Some(vec![7])) }).await, Ok(Some(vec![7])));
        assert_eq!(key.get(Epoch(1), || async { Ok(Some(vec![8])) }).await, Ok(Some(vec![7])));
    }
}
