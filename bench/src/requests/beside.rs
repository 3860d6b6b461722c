//! Lookups beside renames of directories, and beside a program that uses the processors as much and renames nothing: the
//! difference is what the renames' locks and changes cost lookups.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, bail};
use mantle_index_client::{IndexClient, Query};
use mantle_types::{Caller, Epoch};
use tokio::{
    runtime::Builder,
    task::JoinHandle,
    time::{Instant, interval_at},
};

use super::{
    directories::{Api, NS, chain},
    figures::Clock,
    renames::{CLIENTS, to_and_fro},
};
use crate::{
    busy,
    cpu::Servers,
    measure::run_clients,
    report::{Report, count, short},
    sample::median,
    stack::Stack,
    wire::Connection,
};

/// Renames a second beside lookups.
const RENAMES: u32 = 1_000;
/// Directories that are looked up, beside those that are renamed.
const LOOKED_UP: usize = 256;
/// Callers: one, whose latency shows, and enough to use the processors up.
pub const CALLERS: [usize; 2] = [1, 32];

/// What is done beside the lookups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Other {
    Nothing,
    /// A program uses the processors as much as the renames did beside these lookups.
    Busy,
    Renames,
}

/// In this order: what the busy program uses is known after the other two.
const OTHERS: [(Other, &str); 3] = [
    (Other::Nothing, "alone (baseline)"),
    (Other::Renames, "beside renames"),
    (Other::Busy, "beside a busy program (baseline)"),
];

/// Rate and p99 of a round's lookups.
struct Found {
    callers: usize,
    other: Other,
    rate: f64,
    p99_ms: f64,
    /// Processors that the other work uses.
    processors: f64,
}

#[derive(Default)]
pub struct Beside {
    found: Vec<Found>,
    /// Renames a second beside lookups.
    renames: Vec<f64>,
}

/// Clients that rename at a pace, in a thread of their own: the lookups' callers do not wait for them.
struct Renaming {
    is_over: Arc<AtomicBool>,
    started: Instant,
    clients: JoinHandle<Result<usize>>,
}

impl Renaming {
    /// Renames directories of a parent, evenly in time.
    fn start(stack: &Stack, parent: &str) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (url, token, parent, ends) = (stack.url.clone(), stack.token.clone(), parent.to_owned(), is_over.clone());
        let clients = tokio::task::spawn_blocking(move || {
            let servers = Servers::parse(&[])?;
            let api = Api::new(&url, &token, &servers)?;
            Builder::new_current_thread().enable_all().build()?.block_on(rename_at_pace(&api, &parent, &ends))
        });
        Self { is_over, started: Instant::now(), clients }
    }

    /// The renames a second.
    async fn end(mut self) -> Result<f64> {
        self.is_over.store(true, Ordering::Relaxed);
        let elapsed = self.started.elapsed();
        Ok((&mut self.clients).await?? as f64 / elapsed.as_secs_f64())
    }
}

impl Drop for Renaming {
    fn drop(&mut self) {
        // After a failure the program would wait for the thread.
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Returns how many renames were made. The directories have their first names again.
async fn rename_at_pace(api: &Api<'_>, parent: &str, is_over: &AtomicBool) -> Result<usize> {
    let (pace, started) = (Duration::from_secs(1) / RENAMES, Instant::now());
    let client = async |client: usize, connection: &Connection| {
        let mut ticks = interval_at(started + pace * client as u32, pace * CLIENTS as u32);
        let mut number = 0;
        while !is_over.load(Ordering::Relaxed) || number % 2 == 1 {
            ticks.tick().await;
            to_and_fro(api, connection, &format!("{parent}/{client}"), number).await?;
            number += 1;
        }
        anyhow::Ok(number)
    };
    let connections = api.connections(CLIENTS);
    let clients = connections.iter().enumerate().map(|(at, connection)| client(at, connection));
    Ok(futures::future::try_join_all(clients).await?.into_iter().sum())
}

impl Beside {
    pub async fn round(
        &mut self,
        (api, stack): (&Api<'_>, &Stack),
        index: &IndexClient,
        round: u32,
        period: Duration,
    ) -> Result<()> {
        let connection = &api.connections(1)[0];
        let parent = format!("{}/parent", chain(&format!("beside{round}")));
        for number in 0..LOOKED_UP {
            api.mkdir(connection, &format!("{parent}/hit{number}?parents=true")).await?;
        }
        for client in 0..CLIENTS {
            api.mkdir(connection, &format!("{parent}/{client}-d")).await?;
        }
        let caller = Caller { uid: 0, gids: Vec::new() };
        let query = |number| Query::new(NS, format!("{parent}/hit{number}").split('/'), caller.clone());
        let queries: Vec<_> = (0..LOOKED_UP).map(query).collect();
        let ask = |client: usize, number: usize| ask(index, &queries[(client * 7 + number) % LOOKED_UP]);
        for callers in CALLERS {
            // Processor time of one of these lookups, and what the renames used beside them.
            let (mut lookup, mut processors) = (0.0, 0.0);
            for (other, _) in OTHERS {
                let busy = (other == Other::Busy).then(|| busy::start(processors)).transpose()?;
                let renaming = (other == Other::Renames).then(|| Renaming::start(stack, &parent));
                let clock = Clock::start(api.servers)?;
                let (rate, sample) = run_clients(callers, period, ask).await?;
                let used = clock.each(sample.len(), None)?.iter().map(|(_, micros)| micros / 1e6).sum::<f64>();
                match other {
                    Other::Nothing => lookup = used,
                    Other::Renames => processors = ((used - lookup) * rate).max(0.0),
                    Other::Busy => {}
                }
                self.found.push(Found { callers, other, rate, p99_ms: sample.p99_ms(), processors });
                if let Some(mut busy) = busy {
                    busy.kill().await?;
                }
                if let Some(renaming) = renaming {
                    self.renames.push(renaming.end().await?);
                }
            }
        }
        Ok(())
    }

    fn medians(&self, callers: usize, other: Other) -> [f64; 2] {
        [self.median(callers, other, |found| found.rate), self.median(callers, other, |found| found.p99_ms)]
    }

    fn median(&self, callers: usize, other: Other, figure: fn(&Found) -> f64) -> f64 {
        let found = self.found.iter().filter(|found| (found.callers, found.other) == (callers, other));
        median(&found.map(figure).collect::<Vec<_>>())
    }

    /// Rate and p99 beside renames, as ratios to those beside something else.
    pub fn ratios(&self, callers: usize, baseline: Other) -> [f64; 2] {
        let ([rate, p99], [base_rate, base_p99]) =
            (self.medians(callers, Other::Renames), self.medians(callers, baseline));
        [rate / base_rate, p99 / base_p99]
    }

    pub fn show(&self, report: &mut Report) {
        report.heading("Lookups beside renames");
        let used_beside = CALLERS.map(|callers| self.median(callers, Other::Renames, |found| found.processors));
        report.paragraph(&format!(
            "Callers ask the index by RPC for directories of ten levels. Meanwhile {CLIENTS} clients, in a thread of \
             their own, rename other directories of the same parent over REST, {} a second (wanted: {}), evenly in time. \
             The busy program renames nothing. It uses as many processors as the renames and their clients did beside the \
             same callers: {} beside one, {} beside {} (all that was used, less what as many lookups use alone), in pieces \
             of {} ms. What lookups lose beside it, they lose to the processors. What they lose beside renames and not \
             beside the program, they lose to locks and changes. One caller leaves the processors time; {} callers use \
             them up, so that every other work takes from their rate.",
            count(median(&self.renames).round() as u64),
            count(RENAMES.into()),
            short(used_beside[0]),
            short(used_beside[1]),
            CALLERS[1],
            short(busy::PIECE.as_secs_f64() * 1e3),
            CALLERS[1],
        ));
        let mut rows = Vec::new();
        for callers in CALLERS {
            for (other, name) in OTHERS {
                let [rate, p99] = self.medians(callers, other);
                rows.push([callers.to_string(), name.to_owned(), count(rate.round() as u64), short(p99)]);
            }
            for (baseline, name) in [(Other::Nothing, "ratio to alone"), (Other::Busy, "ratio to the busy program")] {
                let [rate, p99] = self.ratios(callers, baseline).map(short);
                rows.push([callers.to_string(), name.to_owned(), rate, p99]);
            }
        }
        report.table("callers | lookups | lookups/s | p99 ms", &rows);
    }
}

async fn ask(index: &IndexClient, query: &Query) -> Result<()> {
    let found = index.resolve_one(Epoch(0), query.clone()).await?;
    match found.outcome {
        Ok(()) => Ok(()),
        Err(error) => bail!("lookup of {:?}: {error}", query.path()),
    }
}
