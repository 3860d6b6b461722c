//! Proposes changes of directories as a change stream would.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use mantle_indexnode::{
    index::command::{Command, SourceBatch, SourceId, SourceStart, StreamTransaction},
    standalone::Standalone,
};
use mantle_types::{
    Lineage, Lsn,
    message::{DirectoryOp, DirectoryRecord},
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use super::tree::{LEVELS, MADE_LATER, Tree, record};

/// The only source. No PostgreSQL is behind it: the bench proposes its transactions.
const SOURCE: SourceId = SourceId(0);
const TICK: Duration = Duration::from_millis(2);

/// The level of renamed directories: the lowest in the cached prefixes (k = 3) of paths that are [`LEVELS`] deep.
const RENAMED_LEVEL: usize = LEVELS - 4;

pub fn source_start() -> SourceStart {
    let lineage = Lineage { system_identifier: 1, timeline: 1 };
    SourceStart { source: SOURCE, lineage, consistent_point: Lsn(1), copied: Lsn(1) }
}

/// Changes directories at a given rate. Of ten operations seven make a directory, two remove one, and one renames a
/// directory on the looked-up paths, or back. So parts of the cache are always invalid, and few paths are missing.
#[derive(Default)]
pub struct Writer {
    pub per_second: AtomicU64,
    pub applied: AtomicU64,
    pub is_over: AtomicBool,
}

impl Writer {
    pub async fn run(self: Arc<Self>, leader: Arc<Standalone>, tree: Tree) -> Result<()> {
        let (mut lsn, mut next, mut oldest) = (10, 0_u64, 0_u64);
        let mut ticks = tokio::time::interval(TICK);
        let mut owed = 0.0;
        let mut last = Instant::now();
        while !self.is_over.load(Ordering::Relaxed) {
            ticks.tick().await;
            let per_second = self.per_second.load(Ordering::Relaxed) as f64;
            owed = (owed + per_second * last.elapsed().as_secs_f64()).min(per_second / 5.0);
            last = Instant::now();
            let count = owed as u64;
            if count == 0 {
                continue;
            }
            owed -= count as f64;
            let mut transactions = Vec::new();
            for _ in 0..count {
                lsn += 1;
                let op = some_op(&tree, next, &mut oldest);
                next += 1;
                transactions.push(StreamTransaction { commit_lsn: Lsn(lsn), ops: vec![op] });
            }
            let batch = SourceBatch { source: SOURCE, transactions, position: Lsn(lsn + 1) };
            leader.propose(&Command::Stream(vec![batch])).await?;
            self.applied.fetch_add(count, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn made(tree: &Tree, number: u64, version: u64) -> DirectoryRecord {
    record(tree.some_id(9, number), format!("made {number}"), MADE_LATER + number, version)
}

fn some_op(tree: &Tree, number: u64, oldest: &mut u64) -> DirectoryOp {
    match number % 10 {
        7 | 8 if *oldest < number => {
            *oldest += 1;
            // Some numbers made no directory; their removal finds nothing.
            DirectoryOp::Remove { record: made(tree, *oldest - 1, 2), cause: None }
        }
        9 => {
            let (pair, is_back) = (number / 20, number / 10 % 2 == 1);
            let mut renamed = tree.some_record(RENAMED_LEVEL, pair, 2 + number);
            if !is_back {
                renamed.name = format!("moved {}", renamed.id);
            }
            DirectoryOp::Put { record: renamed, cause: None }
        }
        _ => DirectoryOp::Put { record: made(tree, number, 1), cause: None },
    }
}

/// Lets `clients` make directories for `period`; each starts the next when its last one is applied. One log entry is in
/// flight at a time, as for the change stream; directories that wait meanwhile share the next entry (without batching:
/// one an entry). No other task may write to the group. Answers the numbers of directories and of log entries.
pub async fn make_one_by_one(
    leader: &Standalone,
    tree: Tree,
    clients: usize,
    period: Duration,
    is_batching: bool,
) -> Result<[u64; 2]> {
    let (sender, mut waiting) = mpsc::channel::<oneshot::Sender<()>>(clients);
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let sender = sender.clone();
        tasks.spawn(async move {
            while started.elapsed() < period {
                let (done, is_done) = oneshot::channel();
                // The proposing loop has failed and reports its error.
                if sender.send(done).await.is_err() || is_done.await.is_err() {
                    break;
                }
            }
        });
    }
    drop(sender);
    let (mut directories, mut entries) = (0, 0);
    let mut batch = Vec::with_capacity(clients);
    let batch_max = if is_batching { clients } else { 1 };
    let mut lsn = 10;
    while waiting.recv_many(&mut batch, batch_max).await > 0 {
        let transactions = batch.iter().map(|_| {
            lsn += 1;
            let record = made(&tree, lsn, 1);
            StreamTransaction { commit_lsn: Lsn(lsn), ops: vec![DirectoryOp::Put { record, cause: None }] }
        });
        let batches =
            vec![SourceBatch { source: SOURCE, transactions: transactions.collect(), position: Lsn(lsn + 1) }];
        leader.propose(&Command::Stream(batches)).await?;
        entries += 1;
        directories += batch.len() as u64;
        batch.drain(..).for_each(|done| {
            // The client may have ended; ignore the send error.
            let _ = done.send(());
        });
    }
    tasks.join_all().await;
    Ok([directories, entries])
}
