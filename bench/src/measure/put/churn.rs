//! Puts and deletes in a volume that is nearly full, beside one that is nearly empty: whole requests to two gateways with a volume
//! each, in turns. A nearly full volume has only the blocks of deleted objects for new ones.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use hyper::{StatusCode, body::Bytes};
use mantle_volumes::{BLOCK_BYTES_DEFAULT, Geometry, SEGMENT_BYTES_DEFAULT, blocks_for};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{KIB, MANY, content};
use crate::{
    bounds::Bounds,
    measure::{Bench, rotation},
    probes::Probes,
    report::{Report, count, short},
    signed_s3::{Credentials, SignedS3},
    sql::Session,
    wire::Connection,
};

/// Sizes of objects, in bytes: as many of each order of magnitude.
const SIZES: (usize, usize) = (4 * KIB, 512 * KIB);
/// Share of the volume that live objects take: a little more than the bound on used blocks.
const LIVE: f64 = 0.92;
const USED_MIN: f64 = 0.9;
/// What the turns put into each volume together, as a multiple of its size.
const TIMES: f64 = 3.0;
const TURNS: u32 = 3;
/// A turn that takes longer than so many periods of other measurements is cut short.
const TURN_PERIODS: u32 = 24;
const RATE_RATIO_MIN: f64 = 0.9;
const EXTENTS_MAX: f64 = 1.3;
/// Bound on the bytes of objects to those of the used blocks, at any time.
const LIVE_MIN: f64 = 0.85;
/// The pause between two looks at them. A gateway reports the used blocks four times a second.
const WATCH_PAUSE: Duration = Duration::from_millis(250);
/// The pause of a put that was refused.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
const REFUSED_MAX: u32 = 1_000;

/// A gateway and what is in its volume.
struct Churned {
    name: &'static str,
    s3: SignedS3,
    connections: Vec<Connection>,
    probes: Probes,
    bucket: String,
    /// Bytes of its volume.
    capacity: f64,
    /// Bytes of blocks that objects may take; 0: each object is deleted after its put.
    room: f64,
    /// Keys and bytes of its objects.
    live: RefCell<Vec<(String, usize)>>,
    /// Bytes of blocks that they take.
    occupied: Cell<f64>,
    /// The least share of the objects' own bytes in the used blocks; no number before the first look.
    least_live: Cell<f64>,
    /// Number of the next object.
    next: Cell<u64>,
    /// Puts that were refused.
    refused: Cell<u32>,
    random: RefCell<StdRng>,
}

/// What was done in a turn, or in all turns.
#[derive(Clone, Copy, Default)]
struct Done {
    puts: u64,
    /// Bytes of the objects that were put.
    put: f64,
    elapsed: Duration,
    /// Used bytes to the volume's, at the end.
    used: f64,
}

impl Done {
    fn rate(self) -> f64 {
        self.puts as f64 / self.elapsed.as_secs_f64()
    }
}

/// Bytes of the blocks that an object takes.
fn blocks_of(bytes: usize) -> f64 {
    let geometry = Geometry::new(BLOCK_BYTES_DEFAULT, SEGMENT_BYTES_DEFAULT);
    geometry.map_or(0, |geometry| u64::from(blocks_for(geometry, bytes as u32)) * u64::from(geometry.block_bytes()))
        as f64
}

impl Churned {
    /// `given`: URL, and URL of the probes.
    async fn new(bench: &Bench, name: &'static str, given: &str, live: f64) -> Result<Self> {
        let [url, probes] = given.split(',').collect::<Vec<_>>()[..] else {
            bail!("--churn has url,probes of each gateway, separated by semicolons")
        };
        let options = &bench.options;
        let of = Credentials {
            url: url.to_owned(),
            access_key: options.peer_access_key.clone(),
            secret_key: options.peer_secret_key.clone(),
        };
        let s3 = SignedS3::new(&of, &options.stack.region)?;
        let (connections, probes) = (s3.connections(MANY), Probes::new(probes)?);
        let bucket = format!("{}-{}", bench.ns, name.replace(' ', "-"));
        s3.create_bucket(&connections[0], &bucket).await?;
        let capacity = probes.volume_bytes("volume").await;
        ensure!(capacity > 0.0, "the gateway {name} has no volume");
        Ok(Self {
            name,
            s3,
            connections,
            probes,
            bucket,
            capacity,
            room: capacity * live,
            live: RefCell::default(),
            occupied: Cell::new(0.0),
            least_live: Cell::new(f64::NAN),
            next: Cell::new(0),
            refused: Cell::new(0),
            random: RefCell::new(StdRng::seed_from_u64(1)),
        })
    }

    /// Puts an object that stays. Before that it deletes others until there is room.
    async fn put_and_keep(&self, connection: &Connection, content: &Bytes) -> Result<usize> {
        let bytes = draw(&mut self.random.borrow_mut());
        while self.occupied.get() + blocks_of(bytes) > self.room
            && let Some(chosen) = self.take_any()
        {
            self.remove(connection, chosen).await?;
        }
        self.occupied.set(self.occupied.get() + blocks_of(bytes));
        let key = format!("{}/k{}", self.bucket, self.next.replace(self.next.get() + 1));
        self.put(connection, &key, content.slice(..bytes)).await?;
        self.live.borrow_mut().push((key, bytes));
        Ok(bytes)
    }

    /// Puts an object and deletes it.
    async fn put_and_delete(&self, connection: &Connection, content: &Bytes) -> Result<usize> {
        let bytes = draw(&mut self.random.borrow_mut());
        let key = format!("{}/k{}", self.bucket, self.next.replace(self.next.get() + 1));
        self.put(connection, &key, content.slice(..bytes)).await?;
        self.s3.delete(connection, &key).await?;
        Ok(bytes)
    }

    /// One of the objects, by chance; it is not counted as live any more.
    fn take_any(&self) -> Option<(String, usize)> {
        let mut live = self.live.borrow_mut();
        let count = live.len();
        (count > 0).then(|| live.swap_remove(self.random.borrow_mut().random_range(0..count)))
    }

    async fn remove(&self, connection: &Connection, (key, bytes): (String, usize)) -> Result<()> {
        self.s3.delete(connection, &key).await?;
        self.occupied.set(self.occupied.get() - blocks_of(bytes));
        Ok(())
    }

    /// Puts an object until the gateway takes it. Counts how often it did not because the volume was full.
    async fn put(&self, connection: &Connection, key: &str, body: Bytes) -> Result<()> {
        loop {
            let (status, text) = self.s3.put(connection, key, body.clone()).await?;
            if status.is_success() {
                return Ok(());
            }
            let is_full = status == StatusCode::INSUFFICIENT_STORAGE && self.refused.get() < REFUSED_MAX;
            ensure!(is_full, "{}: PUT {key}: {status} {}", self.name, String::from_utf8_lossy(&text));
            self.refused.set(self.refused.get() + 1);
            tokio::time::sleep(REFUSED_PAUSE).await;
        }
    }

    /// All connections put and delete until they have put `total` bytes, or `most` has passed.
    async fn turn(&self, (total, most): (f64, Duration), content: &Bytes) -> Result<Done> {
        let started = Instant::now();
        let (puts, put) = (Cell::new(0), Cell::new(0.0));
        let loops = self.connections.iter().map(|connection| {
            let (puts, put) = (&puts, &put);
            async move {
                while put.get() < total && started.elapsed() < most {
                    let bytes = match self.room > 0.0 {
                        true => self.put_and_keep(connection, content).await?,
                        false => self.put_and_delete(connection, content).await?,
                    };
                    puts.set(puts.get() + 1);
                    put.set(put.get() + bytes as f64);
                }
                Ok::<_, anyhow::Error>(())
            }
        });
        tokio::select! {
            ended = futures::future::try_join_all(loops) => drop(ended?),
            never = self.watch() => match never {},
        }
        let elapsed = started.elapsed();
        let used = self.probes.volume_bytes("used").await / self.capacity;
        Ok(Done { puts: puts.get(), put: put.get(), elapsed, used })
    }

    /// Compares the bytes of objects with the used blocks, again and again, until the turn ends.
    async fn watch(&self) -> Infallible {
        loop {
            tokio::time::sleep(WATCH_PAUSE).await;
            let live: usize = self.live.borrow().iter().map(|(_, bytes)| bytes).sum();
            let share = live as f64 / self.probes.volume_bytes("used").await;
            self.least_live.set(self.least_live.get().min(share));
        }
    }

    fn row(&self, done: Done) -> [String; 7] {
        [
            self.name.to_owned(),
            short(done.used),
            count(done.puts),
            short(done.put / self.capacity),
            short(done.rate()),
            short(done.put / 1e6 / done.elapsed.as_secs_f64()),
            self.refused.get().to_string(),
        ]
    }
}

/// Bytes of the next object.
fn draw(random: &mut StdRng) -> usize {
    let (smallest, largest) = (SIZES.0 as f64, SIZES.1 as f64);
    (smallest * (largest / smallest).powf(random.random())) as usize
}

pub(super) async fn run(bench: &Bench, report: &mut Report, bounds: &mut Bounds) -> Result<()> {
    report.heading("Churn over S3");
    let [empty, full] = &bench.options.churn[..] else { bail!("--churn names two gateways") };
    let volumes =
        [Churned::new(bench, "nearly empty", empty, 0.0).await?, Churned::new(bench, "nearly full", full, LIVE).await?];
    report.paragraph(&format!(
        "Objects of {} to {} KiB by {MANY} connections, as many of each order of magnitude, in volumes of {} MiB that cannot grow. In \
         the one that is nearly full, objects take {} % of the blocks: each put deletes others first. In the other one each object is \
         deleted after its put. The full one is filled before the first turn. All turns together put {TIMES} times the volume into each. \
         Used: share of the volume's blocks at the end of the last turn, with those of deleted objects that are not reusable yet. \
         Refused: puts that were answered 507. `make bench ONLY=volumes` counts bytes written for a byte put.",
        SIZES.0 / KIB,
        SIZES.1 / KIB,
        volumes[1].capacity / f64::from(1 << 20),
        LIVE * 100.0,
    ));
    let content = Bytes::from_static(content());
    fill(&volumes[1], &content).await?;
    let mut done: [Vec<Done>; 2] = Default::default();
    for (_, at) in rotation(TURNS, volumes.len()) {
        let total = TIMES * volumes[at].capacity / f64::from(TURNS);
        done[at].push(volumes[at].turn((total, TURN_PERIODS * bench.period), &content).await?);
    }
    let [empty, full] = done.map(|turns| {
        turns.into_iter().fold(Done::default(), |all, one| Done {
            puts: all.puts + one.puts,
            put: all.put + one.put,
            elapsed: all.elapsed + one.elapsed,
            used: one.used,
        })
    });
    report.table(
        "volume | used | puts | bytes put, × the volume | puts and deletes a second | MB a second | refused",
        &[volumes[0].row(empty), volumes[1].row(full)],
    );
    let what = "churn in a nearly full volume";
    bounds.least(format!("{what}: bytes put, × the volume"), TIMES, full.put / volumes[1].capacity);
    bounds.least(format!("{what}: used blocks"), USED_MIN, full.used);
    bounds.least(format!("{what}: puts and deletes, × a nearly empty one"), RATE_RATIO_MIN, full.rate() / empty.rate());
    let admin = Session::connect(&bench.options.stack.admin).await?;
    bounds.most(format!("{what}: extents an object"), EXTENTS_MAX, admin.extents_of_objects(&volumes[1].bucket).await?);
    bounds.least(format!("{what}: bytes of objects to used blocks, at least"), LIVE_MIN, volumes[1].least_live.get());
    bounds.most(format!("{what}: puts refused"), 0.0, volumes[1].refused.get().into());
    Ok(())
}

/// Puts objects until a large one would not fit.
async fn fill(volume: &Churned, content: &Bytes) -> Result<()> {
    let loops = volume.connections.iter().map(|connection| async move {
        while volume.occupied.get() + blocks_of(SIZES.1) <= volume.room {
            volume.put_and_keep(connection, content).await?;
        }
        Ok::<_, anyhow::Error>(())
    });
    futures::future::try_join_all(loops).await.map(drop)
}
