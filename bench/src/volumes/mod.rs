//! `mantle-bench volumes`: the store of objects' bytes alone, without a gateway and without PostgreSQL: put and flush, beside
//! the folder of files that was the store before. The ways take turns, so that all meet the same machine.

mod counted;
mod folder;
mod volume;

use std::{
    fmt,
    future::Future,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};

use self::{counted::Calls, folder::Folder, volume::Objects};
use crate::{
    cpu, machine,
    report::{Report, short},
};

/// Bound on puts of the store, beside the folder, of 8 KiB by 20 writers.
const PUTS_RATIO_MIN: f64 = 4.0;
/// Bound on puts in a volume that is nearly full, beside an empty one.
const FULL_RATIO_MIN: f64 = 0.9;
/// Bound on bytes written for a byte put, in a volume that is nearly full.
const WRITTEN_RATIO_MAX: f64 = 1.1;
/// Of each volume, in bytes.
const VOLUME_BYTES: u64 = 1 << 30;
/// How full a volume is that is nearly full.
const FULL_PERCENT: u64 = 90;

/// Measure the store of objects' bytes alone
#[derive(clap::Args)]
pub struct Options {
    /// A folder for volumes and files, on the disk to be measured
    #[arg(long, value_name = "DIR")]
    folder: PathBuf,
    /// Seconds of each turn
    #[arg(long, value_name = "N", default_value_t = 2)]
    seconds: u64,
    /// Turns of each way
    #[arg(long, value_name = "N", default_value_t = 3)]
    turns: usize,
}

/// What is measured beside each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A file for each object.
    Files,
    /// A volume of this block size.
    Volume { block_bytes: u32, blocks: Blocks },
}

/// What the blocks of a volume are before the turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blocks {
    /// Written before, and in the kernel's cache.
    Cached,
    /// Written before, and not in the kernel's cache: a part of a page cannot be written before it is read.
    Cold,
    /// Reserved, and never written: a flush has to note which are.
    New,
}

const WAYS: [Way; 3] = [
    Way::Files,
    Way::Volume { block_bytes: 4096, blocks: Blocks::Cached },
    Way::Volume { block_bytes: 1024, blocks: Blocks::Cached },
];

const BLOCKS: [Way; 6] = [
    Way::Volume { block_bytes: 4096, blocks: Blocks::Cached },
    Way::Volume { block_bytes: 4096, blocks: Blocks::Cold },
    Way::Volume { block_bytes: 4096, blocks: Blocks::New },
    Way::Volume { block_bytes: 1024, blocks: Blocks::Cached },
    Way::Volume { block_bytes: 1024, blocks: Blocks::Cold },
    Way::Volume { block_bytes: 1024, blocks: Blocks::New },
];

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Volume { block_bytes, blocks } = self else { return write!(f, "files") };
        let blocks = match blocks {
            Blocks::Cached => "",
            Blocks::Cold => ", not cached",
            Blocks::New => ", never written",
        };
        write!(f, "volume, blocks of {} KiB{blocks}", block_bytes >> 10)
    }
}

/// What one turn did.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    puts: f64,
    bytes: f64,
    cpu: Duration,
    calls: Calls,
}

impl Turn {
    fn per_put(&self, value: f64) -> String {
        short(value / self.puts)
    }
}

/// Content of objects, which no file system could compress.
struct Content(Bytes);

impl Content {
    fn new() -> Self {
        let mut bytes = vec![0; 1 << 20];
        StdRng::seed_from_u64(7).fill_bytes(&mut bytes);
        Self(bytes.into())
    }

    fn of(&self, bytes: usize) -> Bytes {
        self.0.slice(..bytes)
    }
}

/// Puts of so many writers for this long. Returns puts and bytes a second, and processor time for all of them.
async fn turn<F>(writers: usize, period: Duration, put: impl Fn(usize) -> F + Send + Sync + 'static) -> Result<Turn>
where
    F: Future<Output = Result<u64>> + Send,
{
    let (put, before, began) = (Arc::new(put), cpu::own()?, Instant::now());
    let write = |writer| {
        let put = put.clone();
        tokio::spawn(async move {
            let (mut puts, mut bytes) = (0u64, 0);
            while began.elapsed() < period {
                bytes += put(writer).await?;
                puts += 1;
            }
            Ok::<_, anyhow::Error>((puts, bytes))
        })
    };
    let tasks: Vec<_> = (0..writers).map(write).collect();
    let (mut puts, mut bytes) = (0, 0);
    for task in tasks {
        let (more, more_bytes) = task.await??;
        (puts, bytes) = (puts + more, bytes + more_bytes);
    }
    let seconds = began.elapsed().as_secs_f64();
    let cpu = (cpu::own()? - before).div_f64(seconds);
    Ok(Turn { puts: puts as f64 / seconds, bytes: bytes as f64 / seconds, cpu, calls: Calls::default() })
}

/// The turn with the median of puts.
fn median(mut turns: Vec<Turn>) -> Turn {
    turns.sort_by(|a, b| a.puts.total_cmp(&b.puts));
    turns.swap_remove(turns.len() / 2)
}

/// Measures; answers the report and whether the bounds held.
pub async fn run(options: &Options) -> Result<(Report, bool)> {
    let Options { folder, seconds, turns } = options;
    ensure!(*seconds > 0 && *turns > 0, "nothing to do");
    std::fs::create_dir_all(folder)?;
    let mut facts = machine::hardware()?;
    facts.push(format!("turns          {turns} of {seconds} seconds each way (--turns, --seconds)"));
    let mut report = Report::new(
        "Bench: the store of objects' bytes",
        "Written by `mantle-bench volumes`; do not edit. Put and flush, without a gateway and without PostgreSQL. The ways take \
         turns; figures are those of the turn with the median of puts.",
        &facts,
    );
    let is_quick = puts(options, &mut report).await?;
    let is_quick_when_full = churn(options, &mut report).await?;
    Ok((report, is_quick && is_quick_when_full))
}

/// The volumes that are used again, by their block size.
struct Volumes<'a> {
    options: &'a Options,
    content: Content,
    used: Vec<(u32, Arc<Objects>)>,
}

impl<'a> Volumes<'a> {
    async fn create(options: &'a Options) -> Result<Self> {
        let mut used = Vec::new();
        for block_bytes in [4096, 1024] {
            let path = options.folder.join(format!("volume-{block_bytes}"));
            let objects = Objects::create(&path, block_bytes, VOLUME_BYTES)?;
            objects.fill().await?;
            used.push((block_bytes, Arc::new(objects)));
        }
        Ok(Self { options, content: Content::new(), used })
    }

    async fn turn(&self, way: Way, bytes: usize, writers: usize) -> Result<Turn> {
        let Options { folder, seconds, .. } = self.options;
        let (content, period) = (self.content.of(bytes), Duration::from_secs(*seconds));
        let Way::Volume { block_bytes, blocks } = way else {
            return files(&folder.join("objects"), content, writers, period).await;
        };
        if blocks == Blocks::New {
            let path = folder.join("volume-new");
            let objects = Arc::new(Objects::create(&path, block_bytes, VOLUME_BYTES)?);
            let turn = in_volume(objects, content, writers, period).await?;
            std::fs::remove_file(path)?;
            return Ok(turn);
        }
        let (_, objects) = self.used.iter().find(|(size, _)| *size == block_bytes).context("no such volume")?;
        if blocks == Blocks::Cold {
            objects.forget_cached()?;
        }
        in_volume(objects.clone(), content, writers, period).await
    }

    /// The median turn of each way.
    async fn turns(&self, ways: &[Way], bytes: usize, writers: usize) -> Result<Vec<Turn>> {
        let mut measured: Vec<Vec<Turn>> = vec![Vec::new(); ways.len()];
        for number in 0..self.options.turns {
            for at in 0..ways.len() {
                let at = (at + number) % ways.len();
                measured[at].push(self.turn(ways[at], bytes, writers).await?);
            }
        }
        Ok(measured.into_iter().map(median).collect())
    }
}

const COLUMNS: &str = "object | writers | way | puts/s | to the first | processor µs a put | flushes a put | writes a put | bytes \
                       written a byte";

/// Rows of one size and number of writers, the first way first.
fn rows(ways: &[Way], turns: &[Turn], kib: usize, writers: usize) -> Vec<[String; 9]> {
    let row = |(way, turn): (&Way, &Turn)| {
        [
            format!("{kib} KiB"),
            writers.to_string(),
            way.to_string(),
            short(turn.puts),
            short(turn.puts / turns[0].puts),
            turn.per_put(turn.cpu.as_secs_f64() * 1e6),
            turn.per_put(turn.calls.flushes),
            turn.per_put(turn.calls.writes),
            short(turn.calls.bytes / turn.bytes),
        ]
    };
    ways.iter().zip(turns).map(row).collect()
}

async fn puts(options: &Options, report: &mut Report) -> Result<bool> {
    report.heading("Puts");
    let volumes = Volumes::create(options).await?;
    let (mut all, mut bound) = (Vec::new(), f64::NAN);
    for (kib, writers) in [(1, 20), (4, 20), (8, 1), (8, 20), (8, 100), (64, 20), (512, 20), (1024, 20)] {
        let turns = volumes.turns(&WAYS, kib << 10, writers).await?;
        if (kib, writers) == (8, 20) {
            bound = turns[1].puts / turns[0].puts;
        }
        all.extend(rows(&WAYS, &turns, kib, writers));
    }
    report.table(COLUMNS, &all);
    let held = bound >= PUTS_RATIO_MIN;
    let text =
        format!("Puts of 8 KiB by 20 writers are at least {PUTS_RATIO_MIN} times those into files: {}.", short(bound));
    report.verdict(&text, held);

    report.heading("What blocks were before");
    let mut all = Vec::new();
    for kib in [1, 8, 64] {
        all.extend(rows(&BLOCKS, &volumes.turns(&BLOCKS, kib << 10, 20).await?, kib, 20));
    }
    report.table(COLUMNS, &all);
    for block_bytes in [4096, 1024] {
        std::fs::remove_file(options.folder.join(format!("volume-{block_bytes}")))?;
    }
    Ok(held)
}

async fn files(path: &Path, content: Bytes, writers: usize, period: Duration) -> Result<Turn> {
    let folder = Arc::new(Folder::new(path.to_owned())?);
    let ended = turn(writers, period, {
        let folder = folder.clone();
        move |_| {
            let (folder, content) = (folder.clone(), content.clone());
            async move { folder.put(content).await }
        }
    });
    let ended = ended.await?;
    folder.remove()?;
    // Per put: the file's, the folder's; and the file's bytes.
    let calls = Calls { flushes: 2.0 * ended.puts, writes: ended.puts, bytes: ended.bytes };
    Ok(Turn { calls, ..ended })
}

async fn in_volume(objects: Arc<Objects>, content: Bytes, writers: usize, period: Duration) -> Result<Turn> {
    objects.clear()?;
    let (before, began) = (objects.calls(), Instant::now());
    let ended = turn(writers, period, {
        let objects = objects.clone();
        move |_| {
            let (objects, content) = (objects.clone(), content.clone());
            async move { objects.put_and_delete(content).await }
        }
    });
    let ended = ended.await?;
    let calls = objects.calls().since(before).per_second(began.elapsed());
    Ok(Turn { calls, ..ended })
}

/// Objects of 4 to 512 KiB, as many of each order of magnitude.
fn draw(random: &mut StdRng) -> usize {
    (4096.0 * 128f64.powf(random.random())) as usize
}

/// Writes every block, and puts twice the volume if it is to be full.
async fn prepare(objects: &Objects, content: &Content, percent: u64) -> Result<()> {
    objects.fill().await?;
    let (mut random, mut put) = (StdRng::seed_from_u64(1), 0);
    while percent > 0 && put < 2 * VOLUME_BYTES {
        put += objects.churn(content.of(draw(&mut random)), percent, random.next_u32() as usize).await?;
    }
    Ok(())
}

async fn churn(options: &Options, report: &mut Report) -> Result<bool> {
    report.heading("A volume that is nearly full");
    report.paragraph(&format!(
        "Objects of 4 to 512 KiB by 20 writers, in a volume that is empty and in one of which {FULL_PERCENT} % are used: each put \
         deletes others first. All blocks were written before, and twice the volume was put before the first turn."
    ));
    let (content, period) = (Arc::new(Content::new()), Duration::from_secs(options.seconds));
    let mut measured: [Vec<Turn>; 2] = Default::default();
    let volumes =
        ["empty", "full"].map(|name| Objects::create(&options.folder.join(name), 4096, VOLUME_BYTES).map(Arc::new));
    let [empty, full] = volumes;
    let volumes = [(empty?, 0), (full?, FULL_PERCENT)];
    let mut extents = 0.0;
    for (objects, percent) in &volumes {
        prepare(objects, &content, *percent).await?;
    }
    for number in 0..options.turns {
        for at in 0..2 {
            let at = (at + number) % 2;
            let (objects, percent) = volumes[at].clone();
            let (before, began) = (objects.calls(), Instant::now());
            objects.take_extents();
            let ended = turn(20, period, {
                let (objects, content) = (objects.clone(), content.clone());
                move |_| {
                    let (objects, content) = (objects.clone(), content.clone());
                    let mut random = StdRng::from_rng(&mut rand::rng());
                    async move { objects.churn(content.of(draw(&mut random)), percent, random.next_u32() as usize).await }
                }
            });
            let ended = ended.await?;
            let calls = objects.calls().since(before).per_second(began.elapsed());
            measured[at].push(Turn { calls, ..ended });
            if percent > 0 {
                extents = objects.take_extents();
            }
        }
    }
    let [empty, full] = measured.map(median);
    let row = |name: &str, turn: &Turn, extents: f64| {
        [
            name.to_owned(),
            short(turn.puts),
            short(turn.bytes / 1e6),
            turn.per_put(turn.cpu.as_secs_f64() * 1e6),
            turn.per_put(turn.calls.flushes),
            turn.per_put(turn.calls.writes),
            short(turn.calls.bytes / turn.bytes),
            short(extents),
        ]
    };
    let rows = [row("empty", &empty, 1.0), row("nearly full", &full, extents)];
    let columns = "volume | puts/s | MB/s | processor µs a put | flushes a put | writes a put | bytes written a byte | extents an object";
    report.table(columns, &rows);
    let (ratio, written) = (full.puts / empty.puts, full.calls.bytes / full.bytes);
    let held = ratio >= FULL_RATIO_MIN && written <= WRITTEN_RATIO_MAX;
    let text = format!(
        "Puts are at least {FULL_RATIO_MIN} times those into an empty volume, and write at most {WRITTEN_RATIO_MAX} times the \
         bytes: {} and {}.",
        short(ratio),
        short(written)
    );
    report.verdict(&text, held);
    Ok(held)
}
