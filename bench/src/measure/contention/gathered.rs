//! mkdir in one directory with calls gathered as a gateway gathers them, by the same code for Mantle and for the textbook.
//!
//! A gateway has one batch in flight; calls that arrive meanwhile make up the next batch. (Only beside a stalled batch it
//! sends more, up to `postgres.batches_in_flight_max`.) So one gateway is one session, which cannot contend with itself,
//! however counts are kept.

use anyhow::{Result, anyhow};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use super::{Measured, Setting, Way};
use crate::{
    measure::{rotation, run_clients},
    report::{Report, count, short},
};

const CLIENTS: [usize; 2] = [16, 64];
const GATEWAYS: [usize; 3] = [1, 2, 4];
const TURNS: u32 = 3;
const IDS_PER_TURN: i64 = 40_000;
/// `postgres.batch_elements_max` of a gateway.
const ELEMENTS_MAX: usize = 256;

struct Job {
    id: i64,
    reply: oneshot::Sender<()>,
}

/// Sends the jobs in batches, one batch after the other, until all senders are gone. Answers the number of batches.
async fn gather(
    setting: &Setting<'_>,
    way: Way,
    gateway: usize,
    parent: i64,
    mut jobs: mpsc::UnboundedReceiver<Job>,
) -> Result<u64> {
    let mut batch = Vec::with_capacity(ELEMENTS_MAX);
    let mut batches = 0;
    while jobs.recv_many(&mut batch, ELEMENTS_MAX).await > 0 {
        let ids: Vec<i64> = batch.iter().map(|job| job.id).collect();
        setting.sessions[gateway].mkdirs(way.store(), setting.ns, parent, &ids).await?;
        batches += 1;
        for job in batch.drain(..) {
            // The client may have ended with its turn; ignore the send error.
            let _ = job.reply.send(());
        }
    }
    Ok(batches)
}

/// Measures each number of gateways and clients.
pub async fn run(setting: &Setting<'_>, report: &mut Report) -> Result<()> {
    report.heading("mkdir in one directory, calls gathered as a gateway gathers them");
    report.paragraph(
        "The bench gathers calls as a gateway does, for Mantle and for the textbook: calls that arrive while one is in flight \
         make up the next one. Each gateway has one call in flight, on a direct session of its own. `textbook` has a function \
         for batches too. Without gathering (`postgres.batch_elements_max = 1`): the table of mkdir above.",
    );
    let mut rows = Vec::new();
    for gateways in GATEWAYS {
        for clients in CLIENTS {
            let mut found = <[(Measured, u64); 4]>::default();
            let mut parents = Vec::new();
            for way in Way::ALL {
                parents.push(setting.parents(way, 1).await?[0]);
            }
            for (_, at) in rotation(TURNS, parents.len()) {
                one_turn(setting, Way::ALL[at], parents[at], (gateways, clients), &mut found[at]).await?;
                setting.watcher.wait_for_compaction().await?;
            }
            let [.., (baseline, _)] = &found;
            for (way, (of, batches)) in Way::ALL.iter().zip(&found) {
                let [speed, waits] = of.cells(baseline);
                let what = vec![count(gateways as u64), count(clients as u64), way.name().to_owned()];
                rows.push([what, speed, vec![short(of.sample.len() as f64 / *batches as f64)], waits].concat());
            }
        }
    }
    report.table(
        "gateways | clients | counts | per second | to textbook | p99 ms | to textbook | a batch | Lock | LWLock | sessions",
        &rows,
    );
    Ok(())
}

async fn one_turn(
    setting: &Setting<'_>,
    way: Way,
    parent: i64,
    (gateways, clients): (usize, usize),
    (found, batches): &mut (Measured, u64),
) -> Result<()> {
    setting.choose(way, gateways).await?;
    let first = setting.block(IDS_PER_TURN * clients as i64).await?;
    let mut queues = Vec::new();
    let mut senders = FuturesUnordered::new();
    for gateway in 0..gateways {
        let (queue, jobs) = mpsc::unbounded_channel();
        queues.push(queue);
        senders.push(gather(setting, way, gateway, parent, jobs));
    }
    let turn = async {
        let done = run_clients(clients, setting.bench.period / 2 / TURNS, |client, round| {
            let id = first + IDS_PER_TURN * client as i64 + round as i64;
            let queue = &queues[client % gateways];
            async move {
                let (reply, answer) = oneshot::channel();
                queue.send(Job { id, reply }).map_err(|_| anyhow!("the sender has ended"))?;
                answer.await.map_err(|_| anyhow!("a batch failed"))
            }
        })
        .await;
        queues.clear();
        done
    };
    let sent = async {
        let mut batches = 0;
        while let Some(of) = senders.next().await {
            batches += of?;
        }
        Ok(batches)
    };
    let started = std::time::Instant::now();
    let both = async { tokio::try_join!(turn, sent) };
    let ((_, sample), sent) = found.waits.during(setting.watcher, &setting.bench.database_role, both).await?;
    found.lasted += started.elapsed();
    found.sample.merge(sample);
    *batches += sent;
    Ok(())
}
