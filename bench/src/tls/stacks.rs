//! PUT and mkdir at the two stacks: processor time of each process for an operation, operations a second, latency.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rand::Rng;

use super::Options;
use crate::{
    cpu::{self, Servers},
    http,
    measure::{rotation, run_rounds},
    report::{Report, count, short},
    rest::Rest,
    s3::S3,
    sample::median,
};

const BODY_BYTES: usize = 1 << 10;
const IDLE_LASTED: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub enum Operation {
    Put,
    Mkdir,
}

impl Operation {
    pub const ALL: [Self; 2] = [Self::Put, Self::Mkdir];

    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "PUT of 1 KiB",
            Self::Mkdir => "mkdir",
        }
    }
}

/// One of the two stacks, and its clients.
pub struct Stack {
    rest: Rest,
    s3: S3,
    servers: Servers,
    /// Processors that each server uses without clients.
    idle: Vec<f64>,
    /// The namespace, which is also a bucket.
    ns: String,
    body: &'static [u8],
}

impl Stack {
    /// The plain stack, then the one with TLS.
    pub async fn both(options: &Options) -> Result<[Self; 2]> {
        let Options { urls, tokens, access_keys, secret_keys, region, .. } = options;
        ensure!([urls, tokens, access_keys, secret_keys].iter().all(|pair| pair.len() == 2), "two stacks are needed");
        ensure!(urls[0].starts_with("http:") && urls[1].starts_with("https:"), "one is plain, the other has TLS");
        let body: &'static [u8] = rand::rng().random_iter().take(BODY_BYTES).collect::<Vec<u8>>().leak();
        let ns = format!("bench-{}", chrono::Utc::now().format("%Y%m%d-%H%M%S"));
        let stack = |at: usize, processes: &[String]| {
            let client = http::client_trusting(&options.authority)?;
            anyhow::Ok(Self {
                rest: Rest::new(&urls[at], &tokens[at]).by(client.clone()),
                s3: S3::new(&urls[at], region, &access_keys[at], &secret_keys[at])?.by(client),
                servers: Servers::parse(processes)?,
                idle: Vec::new(),
                ns: ns.clone(),
                body,
            })
        };
        let mut both = [stack(0, &options.plain_processes)?, stack(1, &options.tls_processes)?];
        ensure!(both[0].servers.names().eq(both[1].servers.names()), "both stacks have the same processes");
        for stack in &both {
            stack.rest.create_namespace(&stack.ns).await?;
        }
        measure_idle(&mut both).await?;
        Ok(both)
    }

    /// Processors that all servers together use without clients.
    pub fn idle(&self) -> f64 {
        self.idle.iter().sum()
    }

    async fn call(&self, operation: Operation, path: &str) -> Result<()> {
        match operation {
            Operation::Put => self.s3.put(&format!("{}/{path}", self.ns), None, self.body).await.map(drop),
            Operation::Mkdir => self.rest.mkdir(&self.ns, path).await,
        }
    }

    /// All clients call for a period, in a new directory.
    async fn turn(&self, operation: Operation, turn: u32, clients: usize, period: Duration) -> Result<Turn> {
        let directory = &format!("{operation:?}-{turn}");
        self.rest.mkdir(&self.ns, directory).await?;
        let (before, client, started) = (self.servers.used()?, cpu::own()?, Instant::now());
        let call = |client, round| async move { self.call(operation, &format!("{directory}/{client}-{round}")).await };
        let (rate, sample) = run_rounds(clients, period, usize::MAX, call).await?;
        let (client, lasted) = (cpu::own()?.saturating_sub(client), started.elapsed().as_secs_f64());
        let each = |seconds: f64| seconds * 1e6 / sample.len() as f64;
        let servers = self.servers.used()?.into_iter().zip(before).zip(&self.idle);
        let servers =
            servers.map(|((after, before), idle)| each(after.saturating_sub(before).as_secs_f64() - idle * lasted));
        Ok(Turn { rate, p50_ms: sample.p50_ms(), servers: servers.collect(), client: each(client.as_secs_f64()) })
    }
}

/// Both at the same time, so that they meet the same machine.
async fn measure_idle(stacks: &mut [Stack; 2]) -> Result<()> {
    let before = [stacks[0].servers.used()?, stacks[1].servers.used()?];
    tokio::time::sleep(IDLE_LASTED).await;
    for (stack, before) in stacks.iter_mut().zip(before) {
        let used = stack.servers.used()?.into_iter().zip(before);
        stack.idle = used.map(|(after, before)| after.saturating_sub(before).div_duration_f64(IDLE_LASTED)).collect();
    }
    Ok(())
}

/// The figures of one turn; processor time in microseconds for an operation.
struct Turn {
    rate: f64,
    p50_ms: f64,
    /// By server.
    servers: Vec<f64>,
    client: f64,
}

impl Turn {
    fn all_servers(&self) -> f64 {
        self.servers.iter().sum()
    }
}

/// Adds a section; answers the ratio of the servers' processor time.
pub async fn compare(stacks: &[Stack; 2], operation: Operation, options: &Options, report: &mut Report) -> Result<f64> {
    let period = Duration::from_secs(options.seconds);
    let mut turns = <[Vec<Turn>; 2]>::default();
    for (turn, at) in rotation(options.turns + 1, stacks.len()) {
        let measured = stacks[at].turn(operation, turn, options.clients, period).await?;
        if turn > 0 {
            turns[at].push(measured);
        }
    }
    let medians = |figure: &dyn Fn(&Turn) -> f64| {
        turns.each_ref().map(|turns| median(&turns.iter().map(figure).collect::<Vec<_>>()))
    };
    let row = |name: &str, figures: [f64; 2], show: fn(f64) -> String| {
        [name.to_owned(), show(figures[0]), show(figures[1]), short(figures[1] / figures[0])]
    };
    let mut rows = Vec::new();
    for (at, name) in stacks[0].servers.names().enumerate() {
        rows.push(row(&format!("{name}, µs"), medians(&|turn| turn.servers[at]), short));
    }
    let all_servers = medians(&Turn::all_servers);
    rows.push(row("**all servers, µs**", all_servers, short));
    rows.push(row("the clients' process, µs", medians(&|turn| turn.client), short));
    rows.push(row("servers and clients, µs", medians(&|turn| turn.all_servers() + turn.client), short));
    rows.push(row("operations a second", medians(&|turn| turn.rate), |rate| count(rate.round() as u64)));
    rows.push(row("p50, ms", medians(&|turn| turn.p50_ms), short));
    report.heading(operation.name());
    report.paragraph(match operation {
        Operation::Put => {
            "Over S3 with presigned URLs: new keys in one directory, another one for each turn. Processor time is for one PUT."
        }
        Operation::Mkdir => {
            "Over REST, acknowledged by the index: new directories in one, another one for each turn. Processor time is for one \
             mkdir."
        }
    });
    report.table("process | plain (baseline) | TLS | TLS ÷ plain", &rows);
    Ok(all_servers[1] / all_servers[0])
}
