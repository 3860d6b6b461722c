//! mkdir in one directory with calls gathered as by a gateway; the same code serves Mantle and the textbook.
//!
//! A gateway has one batch in flight; calls that arrive meanwhile make up the next batch. (Only beside a stalled batch
//! it sends more, up to `postgres.batches_in_flight_max`.) So one gateway is one session, which cannot contend with
//! itself, however counts are kept.

use anyhow::{Result, anyhow};
use futures::future::try_join_all;
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

/// The id of a directory to make, and its client's channel.
type Job = (i64, oneshot::Sender<()>);

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
        let ids: Vec<i64> = batch.iter().map(|(id, _)| *id).collect();
        setting.sessions[gateway].mkdirs(way.store, setting.ns, parent, &ids).await?;
        batches += 1;
        for (_, reply) in batch.drain(..) {
            // The client may have ended with its turn; ignore the send error.
            let _ = reply.send(());
        }
    }
    Ok(batches)
}

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
                let [rate, rate_ratio, p99, p99_ratio, lock, lwlock, most] = of.cells(baseline);
                let a_batch = short(of.sample.len() as f64 / *batches as f64);
                let (gateways, clients, way) = (count(gateways as u64), count(clients as u64), way.name.to_owned());
                rows.push([gateways, clients, way, rate, rate_ratio, p99, p99_ratio, a_batch, lock, lwlock, most]);
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
    let first = setting.ids(IDS_PER_TURN * clients as i64).await?;
    let (mut queues, receivers): (Vec<_>, Vec<_>) = (0..gateways).map(|_| mpsc::unbounded_channel()).unzip();
    let senders = receivers.into_iter().enumerate().map(|(at, jobs)| gather(setting, way, at, parent, jobs));
    let turn = async {
        let done = run_clients(clients, setting.period / 2 / TURNS, |client, round| {
            let id = first + IDS_PER_TURN * client as i64 + round as i64;
            let queue = &queues[client % gateways];
            async move {
                let (reply, answer) = oneshot::channel();
                queue.send((id, reply)).map_err(|_| anyhow!("the sender has ended"))?;
                answer.await.map_err(|_| anyhow!("a batch failed"))
            }
        })
        .await;
        queues.clear();
        done
    };
    let sent = async { Ok(try_join_all(senders).await?.into_iter().sum::<u64>()) };
    let both = async {
        let ((_, sample), batches) = tokio::try_join!(turn, sent)?;
        Ok((sample, batches))
    };
    *batches += found.add(setting.watcher, setting.role, both).await?;
    Ok(())
}
