//! The measurements, one file each. Each runs on the data that earlier ones left, and adds a section to the report.

pub mod analysts;
pub mod contention;
pub mod list;
pub mod load;
pub mod lookup;
pub mod mkdir;
pub mod puts;
pub mod rebuild;
pub mod rename;

use std::{
    future::Future,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Result;
use mantle_index_client::IndexClient;

use crate::{input::Input, rest::Rest, s3::S3, sample::Sample};

/// Addresses, clients and options that the measurements share.
pub struct Bench {
    pub rest: Rest,
    pub s3: S3,
    pub index: IndexClient,
    /// PostgreSQL through the pooler, for baselines.
    pub pooler_url: String,
    /// Direct PostgreSQL URL, for the import and for batches.
    pub database_url: String,
    /// The same of a superuser, which makes the textbook's tables and changes the server's settings.
    pub admin_url: String,
    /// The role of `database_url`.
    pub database_role: String,
    /// Gateways that gather calls into batches; the first is `rest`.
    pub gathering: Vec<Rest>,
    /// Gateways that send each call alone.
    pub not_gathering: Vec<Rest>,
    /// Index replicas as given, for the import.
    pub index_addresses: String,
    /// The `mantle` program.
    pub mantle: PathBuf,
    /// The listing's file.
    pub listing: PathBuf,
    /// The listing's keys.
    pub input: Input,
    /// The namespace that the listing is loaded into.
    pub ns: String,
    /// Calls of each kind for one client's latency.
    pub calls: usize,
    /// Duration of each throughput.
    pub period: Duration,
}

/// Turn and way of each step, so that the ways take turns and none always follows the same other one.
pub fn rotation(turns: u32, ways: usize) -> impl Iterator<Item = (u32, usize)> {
    (0..turns).flat_map(move |turn| (0..ways).map(move |at| (turn, (at + turn as usize) % ways)))
}

/// Runs one call and adds its duration to the sample.
pub async fn timed<T>(sample: &mut Sample, call: impl Future<Output = Result<T>>) -> Result<T> {
    let started = Instant::now();
    let value = call.await?;
    sample.add(started.elapsed());
    Ok(value)
}

/// Runs `clients` loops of `call(client, round)` for `period`; answers calls per second and their durations.
pub async fn run_clients<F: Future<Output = Result<()>>>(
    clients: usize,
    period: Duration,
    call: impl Fn(usize, usize) -> F,
) -> Result<(f64, Sample)> {
    let started = Instant::now();
    let call = &call;
    let loops = (0..clients).map(|client| async move {
        let mut sample = Sample::default();
        let mut round = 0;
        while started.elapsed() < period {
            timed(&mut sample, call(client, round)).await?;
            round += 1;
        }
        Ok::<_, anyhow::Error>(sample)
    });
    let samples = futures::future::try_join_all(loops).await?;
    let elapsed = started.elapsed().as_secs_f64();
    let mut all = Sample::default();
    samples.into_iter().for_each(|sample| all.merge(sample));
    Ok((all.len() as f64 / elapsed, all))
}
