//! Renames of directories over REST that meet each other, and lookups that meet them.

use std::{cell::Cell, time::Duration};

use anyhow::{Result, bail};
use mantle_index_client::{IndexClient, Query};
use mantle_types::{Caller, Epoch};
use tokio::time::interval;

use super::directories::{Api, NS, chain};
use crate::{
    measure::run_clients,
    report::{Report, count, short},
    sample::median,
};

const CLIENTS: usize = 64;
/// Renames a second beside lookups.
const RENAMES: usize = 1_000;
/// Directories that are looked up, beside those that are renamed.
const LOOKED_UP: usize = 256;
/// Callers: one, whose latency shows, and enough to use the processors up.
pub const CALLERS: [usize; 2] = [1, 32];

/// Rates of 64 clients, in one parent directory for all and in one for each.
#[derive(Default)]
pub struct Together {
    shared: Vec<f64>,
    private: Vec<f64>,
}

/// Lookups of some callers without renames, and beside them.
#[derive(Default)]
pub struct Beside {
    quiet: [Vec<f64>; 2],
    beside: [Vec<f64>; 2],
    renames: Vec<f64>,
}

/// A client's directory, which is renamed to and fro. `number`: of the rename.
async fn to_and_fro(api: &Api<'_>, connection: &super::wire::Connection, place: &str, number: usize) -> Result<()> {
    let [here, there] = ["d", "r"].map(|name| format!("{place}-{name}/"));
    let (source, destination) = if number.is_multiple_of(2) { (here, there) } else { (there, here) };
    api.rename(connection, &source, &destination).await
}

impl Together {
    pub async fn round(&mut self, api: &Api<'_>, round: u32, period: Duration) -> Result<()> {
        let connections = api.connections(CLIENTS);
        for (is_shared, rates) in [(true, &mut self.shared), (false, &mut self.private)] {
            let base = chain(&format!("together{round}-{is_shared}"));
            let place = |client: usize| format!("{base}/{}/{client}", if is_shared { 0 } else { client });
            for (client, connection) in connections.iter().enumerate() {
                api.mkdir(connection, &format!("{}-d?parents=true", place(client))).await?;
            }
            let rename = |client: usize, number: usize| {
                let (connection, place) = (&connections[client], place(client));
                async move { to_and_fro(api, connection, &place, number).await }
            };
            rates.push(run_clients(CLIENTS, period, rename).await?.0);
        }
        Ok(())
    }

    /// The rate in one parent, as a ratio to that in one each.
    pub fn ratio(&self) -> f64 {
        median(&self.shared) / median(&self.private)
    }

    pub fn show(&self, report: &mut Report) {
        report.heading("Renames of directories over REST, 64 clients");
        report.paragraph(
            "Each client renames a directory of its own to and fro, and nobody else names it. Either all of them lie \
             in one parent, or each in another.",
        );
        let row = |name: &str, rates: &[f64]| [name.to_owned(), count(median(rates).round() as u64)];
        let ratio = ["ratio".to_owned(), short(self.ratio())];
        report.table(
            "parents | renames/s",
            &[row("one for each", &self.private), row("one for all", &self.shared), ratio],
        );
    }
}

impl Beside {
    pub async fn round(&mut self, api: &Api<'_>, index: &IndexClient, round: u32, period: Duration) -> Result<()> {
        let connections = api.connections(CLIENTS);
        let parent = format!("{}/parent", chain(&format!("beside{round}")));
        for number in 0..LOOKED_UP {
            api.mkdir(&connections[0], &format!("{parent}/hit{number}?parents=true")).await?;
        }
        for (client, connection) in connections.iter().enumerate() {
            api.mkdir(connection, &format!("{parent}/{client}-d")).await?;
        }
        let caller = Caller { uid: 0, gids: Vec::new() };
        let query = |number| Query::new(NS, format!("{parent}/hit{number}").split('/'), caller.clone());
        let queries: Vec<_> = (0..LOOKED_UP).map(query).collect();
        let renamed: Vec<_> = (0..CLIENTS).map(|_| Cell::new(0)).collect();
        for (at, callers) in CALLERS.into_iter().enumerate() {
            let lookups = async || {
                let ask = |client: usize, number: usize| ask(index, &queries[(client * 7 + number) % LOOKED_UP]);
                run_clients(callers, period, ask).await
            };
            let (rate, sample) = lookups().await?;
            self.quiet[at].extend([rate, sample.p99_ms()]);
            let (is_over, before) = (Cell::new(false), renamed.iter().map(Cell::get).sum::<usize>());
            let measured = async {
                let measured = lookups().await;
                is_over.set(true);
                measured
            };
            let renames = connections.iter().zip(&renamed).enumerate().map(async |(client, (connection, renamed))| {
                let mut ticks = interval(Duration::from_secs(1) * CLIENTS as u32 / RENAMES as u32);
                while !is_over.get() {
                    ticks.tick().await;
                    to_and_fro(api, connection, &format!("{parent}/{client}"), renamed.get()).await?;
                    renamed.set(renamed.get() + 1);
                }
                anyhow::Ok(())
            });
            let ((rate, sample), _) = futures::try_join!(measured, futures::future::try_join_all(renames))?;
            self.beside[at].extend([rate, sample.p99_ms()]);
            let done = renamed.iter().map(Cell::get).sum::<usize>() - before;
            self.renames.push(done as f64 / period.as_secs_f64());
        }
        Ok(())
    }

    fn medians(figures: &[f64]) -> [f64; 2] {
        [0, 1].map(|at| median(&figures.iter().skip(at).step_by(2).copied().collect::<Vec<_>>()))
    }

    /// Rate and p99 beside renames, as ratios to those without, by callers.
    pub fn ratios(&self) -> [[f64; 2]; 2] {
        [0, 1].map(|at| {
            let ([rate, p99], [quiet_rate, quiet_p99]) =
                (Self::medians(&self.beside[at]), Self::medians(&self.quiet[at]));
            [rate / quiet_rate, p99 / quiet_p99]
        })
    }

    pub fn show(&self, report: &mut Report) {
        report.heading("Lookups beside renames");
        report.paragraph(&format!(
            "Callers ask the index by RPC for directories of ten levels. Meanwhile 64 clients rename other \
             directories of the same parent over REST, {} a second (wanted: {}). One caller leaves the processors \
             time; {} callers use them up, so that every other work takes from their rate.",
            count(median(&self.renames).round() as u64),
            count(RENAMES as u64),
            CALLERS[1],
        ));
        let mut rows = Vec::new();
        for (at, callers) in CALLERS.into_iter().enumerate() {
            let all = [Self::medians(&self.quiet[at]), Self::medians(&self.beside[at]), self.ratios()[at]];
            for (name, [rate, p99]) in ["without renames (baseline)", "beside renames", "ratio"].into_iter().zip(all) {
                let rate = if name == "ratio" { short(rate) } else { count(rate.round() as u64) };
                rows.push([callers.to_string(), name.to_owned(), rate, short(p99)]);
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
