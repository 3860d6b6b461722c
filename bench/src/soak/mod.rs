//! The soak: one directory takes thousands of delta records a second, and `mantle.dirstat` of it must stay fast, with
//! the compaction worker and autovacuum as shipped.
//!
//! Each minute must hold the bounds. The soak also fails when the load was not reached, or when a transaction was older
//! than a second: it would hold dead rows back, so the figures would show nothing.

mod load;
mod watch;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use self::{
    load::{Load, read, write},
    watch::{Seen, watch},
};
use crate::{
    machine,
    report::{Report, count, short},
    sample::Sample,
    sql::Session,
};

const DIRSTAT_P50_MS_MAX: f64 = 2.0;
const DIRSTAT_P99_MS_MAX: f64 = 5.0;
const TRANSACTION_AGE_MAX: Duration = Duration::from_secs(1);
/// Share of the wanted rate that each minute must reach.
const RATE_SHARE_MIN: f64 = 0.95;
const MINUTE: Duration = Duration::from_secs(60);

/// Hold `mantle.dirstat` to its bounds while one directory takes delta records
#[derive(clap::Args)]
pub struct Options {
    /// Duration in seconds
    #[arg(long, value_name = "N", default_value_t = 600)]
    seconds: u64,
    /// Wanted delta records a second
    #[arg(long, value_name = "N", default_value_t = 4_000)]
    rate: u64,
    /// Sessions that write
    #[arg(long, value_name = "N", default_value_t = 4)]
    writers: u64,
    /// Calls of `mantle.put_object` in a writer's transaction; more where the disk flushes too slowly for the rate
    #[arg(long, value_name = "N", default_value_t = 10)]
    calls_per_commit: u64,
    /// Direct PostgreSQL URL of a role in mantle_gateway
    #[arg(long, env = "DATABASE_URL", value_name = "URL", hide_env_values = true)]
    database: String,
    /// Direct PostgreSQL URL of a superuser, which sees all transactions
    #[arg(long, env = "MANTLE_ADMIN_URL", value_name = "URL", hide_env_values = true)]
    admin: String,
}

/// The measurements of one minute.
#[derive(Clone, Default)]
struct Minute {
    lasted: Duration,
    deltas: u64,
    dirstat: Sample,
    nothing: Sample,
    seen: Seen,
}

impl Minute {
    fn per_second(&self) -> f64 {
        self.deltas as f64 / self.lasted.as_secs_f64()
    }

    /// The bounds that it missed, in words.
    fn misses(&self, rate: u64) -> Vec<String> {
        let mut missed = Vec::new();
        let mut hold = |name: &str, value: f64, most: f64| {
            // A minute without a value does not hold the bound.
            if value.is_nan() || value > most {
                missed.push(format!("{name} {} above {}", short(value), short(most)));
            }
        };
        hold("dirstat p50 ms", self.dirstat.p50_ms(), DIRSTAT_P50_MS_MAX);
        hold("dirstat p99 ms", self.dirstat.p99_ms(), DIRSTAT_P99_MS_MAX);
        hold("oldest transaction s", self.seen.oldest.as_secs_f64(), TRANSACTION_AGE_MAX.as_secs_f64());
        if self.per_second() < rate as f64 * RATE_SHARE_MIN {
            missed.push(format!("{} delta records/s, not {rate}", short(self.per_second())));
        }
        missed
    }
}

/// Measures; answers the report and whether the bounds held.
pub async fn run(options: &Options) -> Result<(Report, bool)> {
    let given = [options.seconds, options.rate, options.writers, options.calls_per_commit];
    ensure!(!given.contains(&0), "nothing to do");
    let admin = Session::connect(&options.admin).await?;
    let Options { seconds, writers, calls_per_commit, .. } = options;
    let facts = [
        format!("command        make soak SECONDS={seconds}"),
        format!("writers        {writers} sessions, {calls_per_commit} calls of mantle.put_object a commit"),
        format!("wanted         {} delta records/s in one directory", count(options.rate)),
    ];
    let facts = [&facts[..], &machine::facts(&admin).await?].concat();
    let report = Report::new("Soak", "Written by `make soak` (`mantle-bench soak`); do not edit.", &facts);
    let minutes = measure(options, admin).await?;
    Ok(conclude(report, options.rate, &minutes))
}

async fn measure(options: &Options, admin: Session) -> Result<Vec<Minute>> {
    let first = Session::connect(&options.database).await?;
    let ns = first.allocate_ids(1).await?;
    first.create_namespace(&format!("soak-{}", chrono::Utc::now().format("%Y%m%d-%H%M%S")), ns).await?;
    let started = Instant::now();
    let load = Arc::new(Load {
        url: options.database.clone(),
        ns,
        started,
        ends: started + Duration::from_secs(options.seconds),
        pause: Duration::from_secs_f64((options.calls_per_commit * options.writers) as f64 / options.rate as f64),
        calls_per_commit: options.calls_per_commit,
    });
    let writers: Vec<_> = (0..options.writers).map(|_| tokio::spawn(write(load.clone()))).collect();
    let reader = tokio::spawn(read(load.clone()));
    let watcher = tokio::spawn(watch(load.clone(), admin));
    let mut minutes = vec![Minute::default(); options.seconds.div_ceil(MINUTE.as_secs()) as usize];
    let mut written = 0;
    for writer in writers {
        for (minute, deltas) in minutes.iter_mut().zip(writer.await??) {
            minute.deltas += deltas;
            written += deltas;
        }
    }
    let (reads, seen) = (reader.await??, watcher.await??);
    let mut left = Duration::from_secs(options.seconds);
    for (at, minute) in minutes.iter_mut().enumerate() {
        minute.lasted = left.min(MINUTE);
        left -= minute.lasted;
        (minute.dirstat, minute.nothing) = reads.get(at).cloned().unwrap_or_default();
        minute.seen = seen.get(at).copied().unwrap_or_default();
    }
    let statements = first.prepare_soak().await?;
    let entries = first.dirstat(&statements, ns, ns).await?;
    ensure!(entries == written as i64, "dirstat says {entries} entries, {written} were made");
    Ok(minutes)
}

fn conclude(mut report: Report, rate: u64, minutes: &[Minute]) -> (Report, bool) {
    report.heading("Minute by minute");
    report.paragraph(
        "`mantle.put_object` under `mantle.delta_records = always`: each call appends one delta record to the same directory. \
         Compaction and autovacuum run as shipped. A session of its own calls `mantle.dirstat` every 10 ms, in turn with a \
         statement that reads nothing, which shows the machine's share. Delta records and dead tuples: the maximum seen.",
    );
    let rows: Vec<_> = minutes
        .iter()
        .enumerate()
        .map(|(at, minute)| {
            let Seen { oldest, deltas, table } = &minute.seen;
            let latency = [&minute.dirstat, &minute.nothing].map(Sample::cells);
            let [[p50, p99], [nothing_p50, nothing_p99]] = latency;
            let rate = count(minute.per_second().round() as u64);
            let [deltas, dead, vacuums] = [*deltas, table.dead, table.vacuums].map(|number| count(number as u64));
            let [table, indexes] = [table.table_bytes, table.index_bytes].map(|bytes| count(bytes as u64 >> 20));
            let (minute, oldest) = ((at + 1).to_string(), short(oldest.as_secs_f64() * 1e3));
            [minute, rate, p50, p99, nothing_p50, nothing_p99, deltas, dead, vacuums, table, indexes, oldest]
        })
        .collect();
    report.table(
        "minute | deltas/s | dirstat p50 ms | p99 ms | nothing p50 ms | p99 ms | delta records | dead tuples | vacuums | \
         table MiB | indexes MiB | oldest transaction ms",
        &rows,
    );
    let missed: Vec<_> = minutes
        .iter()
        .enumerate()
        .flat_map(|(at, minute)| minute.misses(rate).into_iter().map(move |what| format!("minute {}: {what}", at + 1)))
        .collect();
    report.heading("Bounds");
    report.paragraph(&format!(
        "dirstat p50 ≤ {} ms and p99 ≤ {} ms, no transaction older than {} s, at least {} % of the wanted rate, in every minute: {}",
        short(DIRSTAT_P50_MS_MAX),
        short(DIRSTAT_P99_MS_MAX),
        TRANSACTION_AGE_MAX.as_secs(),
        RATE_SHARE_MIN * 100.0,
        if missed.is_empty() { "**held**.".to_owned() } else { format!("**missed**.\n\n- {}", missed.join("\n- ")) },
    ));
    for line in &missed {
        eprintln!("  missed: {line}");
    }
    (report, missed.is_empty())
}
