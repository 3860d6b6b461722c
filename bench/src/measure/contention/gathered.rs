//! The same with the calls of a gateway gathered, for Mantle and for the textbook by the same code: what arrives while a
//! batch is in flight goes together in the next, one batch in flight a gateway (`postgres.batches_in_flight_max` bounds those
//! that go beside a stalled one). One gateway is then one session: it cannot contend with itself, however counts are kept.

use anyhow::{Result, anyhow};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use super::{Found, Ground, Way};
use crate::{
    measure::in_lanes,
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

/// Sends what has arrived, one batch after the other, until nobody submits any more; how many batches.
async fn gather(
    ground: &Ground<'_>,
    way: Way,
    gateway: usize,
    parent: i64,
    mut jobs: mpsc::UnboundedReceiver<Job>,
) -> Result<u64> {
    let mut batch = Vec::with_capacity(ELEMENTS_MAX);
    let mut batches = 0;
    while jobs.recv_many(&mut batch, ELEMENTS_MAX).await > 0 {
        let ids: Vec<i64> = batch.iter().map(|job| job.id).collect();
        ground.sessions[gateway].mkdirs(way.store(), ground.ns, parent, &ids).await?;
        batches += 1;
        for job in batch.drain(..) {
            // A client whose turn is over has left.
            let _ = job.reply.send(());
        }
    }
    Ok(batches)
}

/// Measures.
pub async fn run(ground: &Ground<'_>, report: &mut Report) -> Result<()> {
    report.heading("mkdir in one directory, calls gathered as a gateway gathers them");
    report.paragraph(
        "The bench does for both what a gateway does for its clients: what arrives while a call is in flight goes in the next, \
         at most one call in flight a gateway, each on its own direct session. `textbook` has a function for batches too. \
         Without gathering (`postgres.batch_elements_max = 1`): the table of mkdir above.",
    );
    let mut rows = Vec::new();
    for gateways in GATEWAYS {
        for clients in CLIENTS {
            let mut found = <[(Found, u64); 4]>::default();
            let mut parents = Vec::new();
            for way in Way::ALL {
                parents.push(ground.parents(way, 1).await?[0]);
            }
            for turn in 0..TURNS as usize {
                for at in 0..parents.len() {
                    let at = (at + turn) % parents.len();
                    one_turn(ground, Way::ALL[at], parents[at], (gateways, clients), &mut found[at]).await?;
                    ground.settle().await?;
                }
            }
            let [.., (baseline, _)] = &found;
            for (way, (of, batches)) in Way::ALL.iter().zip(&found) {
                let [rate, rate_ratio, p99, p99_ratio, lock, lwlock, most] = of.cells(baseline);
                rows.push([
                    count(gateways as u64),
                    count(clients as u64),
                    way.name().to_owned(),
                    rate,
                    rate_ratio,
                    p99,
                    p99_ratio,
                    short(of.sample.len() as f64 / *batches as f64),
                    lock,
                    lwlock,
                    most,
                ]);
            }
        }
    }
    report.table(
        [
            "gateways",
            "clients",
            "counts",
            "per second",
            "to textbook",
            "p99 ms",
            "to textbook",
            "a batch",
            "Lock",
            "LWLock",
            "sessions",
        ],
        &rows,
    );
    Ok(())
}

async fn one_turn(
    ground: &Ground<'_>,
    way: Way,
    parent: i64,
    (gateways, clients): (usize, usize),
    (found, batches): &mut (Found, u64),
) -> Result<()> {
    ground.choose(way, gateways).await?;
    let first = ground.block(IDS_PER_TURN * clients as i64).await?;
    let mut queues = Vec::new();
    let mut senders = FuturesUnordered::new();
    for gateway in 0..gateways {
        let (queue, jobs) = mpsc::unbounded_channel();
        queues.push(queue);
        senders.push(gather(ground, way, gateway, parent, jobs));
    }
    let turn = async {
        let done = in_lanes(clients, ground.bench.period / 2 / TURNS, |client, round| {
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
    let ((_, sample), sent) = found.waits.during(ground.watcher, &ground.bench.database_role, both).await?;
    found.lasted += started.elapsed();
    found.sample.merge(sample);
    *batches += sent;
    Ok(())
}
