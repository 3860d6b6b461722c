//! Directories that are made and looked up while something happens to the replicas.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use mantle_index_client::Query;
use mantle_types::{Caller, Epoch, ErrorCode};
use tokio::task::JoinHandle;

use super::{ROOT, TestDatabase, TestGroup, connect, eventually, mkdir_in};

const WAIT: Duration = Duration::from_secs(20);

/// Makes directories one after the other; looks each up when it is acknowledged, on one of the living replicas in turn.
pub struct Load {
    pub first_id: i64,
    made: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Load {
    pub async fn start(
        database: &TestDatabase,
        group: &TestGroup,
        namespace: (&'static str, i64),
        down: Arc<AtomicUsize>,
    ) -> Self {
        let session = connect(&database.config).await;
        let ids = "SELECT first_id FROM mantle.allocate_ids('load', 100000)";
        let first_id: i64 = session.query_one(ids, &[]).await.unwrap().get(0);
        let (clients, leader) = (group.clients(), group.client.clone());
        let (name_of_ns, ns) = namespace;
        let (made, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (made.clone(), stop.clone());
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Acquire) {
                let n = counted.load(Ordering::Acquire);
                let (name, id) = (format!("d{n}"), first_id + n as i64);
                let key = mkdir_in(&session, ns, ns, &name, id).await;
                leader.await_request(key, WAIT).await.unwrap();
                let replica = n % clients.len();
                if replica != down.load(Ordering::Acquire) {
                    let client = clients[replica].clone().with_resolve_timeout(WAIT);
                    let query = Query::new(name_of_ns, [name.as_str()], Caller { uid: ROOT, gids: vec![] });
                    match client.resolve_one(Epoch(0), query).await {
                        Ok(found) => assert_eq!(found.id.as_i64(), id, "replica {replica} does not know {name}"),
                        // Between two leaders a replica may refuse, but must not be wrong.
                        Err(e) => assert_eq!(e.code(), ErrorCode::IndexUnavailable, "{e}"),
                    }
                }
                counted.fetch_add(1, Ordering::AcqRel);
            }
        });
        Self { first_id, made, stop, task }
    }

    /// Waits for further acknowledged directories.
    pub async fn goes_on(&self) {
        let wanted = self.made.load(Ordering::Acquire) + 30;
        eventually("more directories", || async {
            assert!(!self.task.is_finished(), "the load has failed");
            (self.made.load(Ordering::Acquire) >= wanted).then_some(())
        })
        .await;
    }

    /// The number of directories made.
    pub async fn end(self) -> usize {
        self.stop.store(true, Ordering::Release);
        self.task.await.unwrap();
        self.made.load(Ordering::Acquire)
    }
}
