//! The measurements, one file each. Each runs on the data that earlier ones left, and adds a section to the report.

pub mod analysts;
pub mod contention;
pub mod inline;
pub mod list;
pub mod load;
pub mod lookup;
pub mod mkdir;
pub mod put;
pub mod puts;
pub mod rebuild;
pub mod rename;
pub mod s3;

use std::time::{Duration, Instant};

use anyhow::Result;
use mantle_index_client::IndexClient;

use crate::{Options, input::Input, rest::Rest, s3::S3, sample::Sample};

/// Clients and options that the measurements share.
pub struct Bench {
    pub options: Options,
    pub rest: Rest,
    pub s3: S3,
    pub index: IndexClient,
    /// The role of `options.stack.database`.
    pub database_role: String,
    /// Gateways that gather calls into batches; the first is `rest`.
    pub gathering: Vec<Rest>,
    /// Gateways that send each call alone.
    pub not_gathering: Vec<Rest>,
    pub input: Input,
    pub ns: String,
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
    run_rounds(clients, period, usize::MAX, call).await
}

/// The same, until each client has made `rounds_max` calls at most.
pub async fn run_rounds<F: Future<Output = Result<()>>>(
    clients: usize,
    period: Duration,
    rounds_max: usize,
    call: impl Fn(usize, usize) -> F,
) -> Result<(f64, Sample)> {
    let started = Instant::now();
    let call = &call;
    let loops = (0..clients).map(|client| async move {
        let mut sample = Sample::default();
        let mut round = 0;
        while round < rounds_max && started.elapsed() < period {
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
