//! The measurements, one file each. Each runs against what the ones before left and adds a section to the report.

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

/// What the measurements share.
pub struct Bench {
    /// The gateway's REST API.
    pub rest: Rest,
    /// The gateway's S3 API.
    pub s3: S3,
    /// The index replicas.
    pub index: IndexClient,
    /// PostgreSQL through the pooler, for baselines.
    pub pooler_url: String,
    /// Direct PostgreSQL URL, for the import and for batches.
    pub database_url: String,
    /// The same of a superuser, who makes the textbook's tables and changes the server's settings.
    pub admin_url: String,
    /// The role of `database_url`.
    pub database_role: String,
    /// Gateways that gather calls into batches, the first being `rest`.
    pub gathering: Vec<Rest>,
    /// Gateways that send each call by itself.
    pub not_gathering: Vec<Rest>,
    /// Index replicas as given, for the import.
    pub index_addresses: String,
    /// The `mantle` program.
    pub mantle: PathBuf,
    /// The listing.
    pub listing: PathBuf,
    /// The same, read.
    pub input: Input,
    /// The namespace that the listing is loaded into.
    pub ns: String,
    /// Calls of each kind where one client's latency is measured.
    pub calls: usize,
    /// How long a throughput is measured.
    pub period: Duration,
}

/// Measures one call.
pub async fn timed<T>(sample: &mut Sample, call: impl Future<Output = Result<T>>) -> Result<T> {
    let started = Instant::now();
    let value = call.await?;
    sample.add(started.elapsed());
    Ok(value)
}

/// Runs `lanes` loops of `call` for `period`; calls done, and their durations.
pub async fn in_lanes<F: Future<Output = Result<()>>>(
    lanes: usize,
    period: Duration,
    call: impl Fn(usize, usize) -> F,
) -> Result<(f64, Sample)> {
    let started = Instant::now();
    let call = &call;
    let loops = (0..lanes).map(|lane| async move {
        let mut sample = Sample::default();
        let mut round = 0;
        while started.elapsed() < period {
            timed(&mut sample, call(lane, round)).await?;
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
