//! One change a call, in PostgreSQL alone, so that nothing but the database tells the ways apart.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use super::{Found, Ground, Way};
use crate::{
    measure::in_lanes,
    report::{Report, count},
    sql::{Move, Session, Store},
};

pub const CLIENTS: [usize; 4] = [1, 4, 16, 64];
/// Turns of each way.
const TURNS: u32 = 3;
/// Ids of one client's turn.
const IDS_PER_TURN: i64 = 20_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Mkdir,
    RenameObject,
    RenameDirectory,
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Self::Mkdir => "mkdir",
            Self::RenameObject => "rename of an object",
            Self::RenameDirectory => "rename of a directory",
        }
    }
}

/// One client's entry, which goes to and fro between two directories.
struct Entry {
    id: i64,
    name: String,
    /// How often it was renamed.
    renames: AtomicU64,
}

/// What one way works on, the same in all its turns.
struct Plot {
    way: Way,
    /// A pair for all clients, or one each.
    parents: Vec<i64>,
    entries: Vec<Entry>,
}

impl Plot {
    async fn new(ground: &Ground<'_>, verb: Verb, way: Way, clients: usize, is_shared: bool) -> Result<Self> {
        let parents = ground.parents(way, if is_shared { 2 } else { 2 * clients }).await?;
        let mut plot = Self { way, parents, entries: Vec::new() };
        if verb == Verb::Mkdir {
            return Ok(plot);
        }
        for client in 0..clients {
            let (session, home, id) = (&ground.sessions[client], plot.home(client).0, ground.ids(1));
            let name = match (verb, way) {
                (Verb::RenameObject, Way::Mantle(_)) => {
                    let put = session.prepare_puts(Store::Mantle).await?;
                    session.put_objects(&put, ground.ns, vec![home], id).await?;
                    format!("o{id}")
                }
                // To the textbook the name's end is the only difference; its entries are made as directories.
                _ => {
                    session.mkdirs(way.store(), ground.ns, home, &[id]).await?;
                    format!("d{id}/")
                }
            };
            plot.entries.push(Entry { id, name, renames: AtomicU64::new(0) });
        }
        Ok(plot)
    }

    /// The two directories of a client.
    fn home(&self, client: usize) -> (i64, i64) {
        let at = 2 * client % self.parents.len();
        (self.parents[at], self.parents[at + 1])
    }

    /// One change; false when the database gave up on it.
    async fn change(&self, session: &Session, ground: &Ground<'_>, client: usize, id: i64) -> Result<bool> {
        let (here, there) = self.home(client);
        let Some(entry) = self.entries.get(client) else {
            session.mkdirs(self.way.store(), ground.ns, here, &[id]).await?;
            return Ok(true);
        };
        let is_back = entry.renames.load(Ordering::Relaxed) % 2 == 1;
        let (source, destination) = if is_back { (there, here) } else { (here, there) };
        let name = entry.name.as_str();
        let Ground { ns, signer, .. } = ground;
        let (source, destination) = ((source, name), (destination, name));
        let of = Move { ns: *ns, source, destination, id: entry.id, attempt: id, signer };
        let done = session.rename(self.way.store(), &of).await?;
        if done {
            entry.renames.fetch_add(1, Ordering::Relaxed);
        }
        Ok(done)
    }
}

/// Measures.
pub async fn run(ground: &Ground<'_>, report: &mut Report) -> Result<()> {
    for verb in [Verb::Mkdir, Verb::RenameObject, Verb::RenameDirectory] {
        report.heading(&format!("{}, by the way counts are kept", verb.name()));
        report.paragraph(match verb {
            Verb::Mkdir => {
                "`auto`, `always`, `never`: `mantle.mkdir` under `mantle.delta_records` (in place if the record is free, else a \
                 delta record; always a delta record; in place after waiting). `textbook`, the baseline: tables and a function of \
                 the bench (`bench/src/sql/textbook.sql`) that insert the entry and update the parent's row, request ids recorded \
                 alike; no latches, no checks, no change-stream message. Direct sessions, one directory a call, the ways in turn. \
                 Lock and LWLock: sessions that waited for one, on average; then what most of them waited for."
            }
            Verb::RenameObject => {
                "Each client's object goes to and fro between two directories, so both parents' counts change: two hot \
                 directories for all clients, or two for each. Every way updates the parents in the order of ids. Failed: deadlocks \
                 and lock timeouts, which count in p99 but not in the throughput."
            }
            Verb::RenameDirectory => {
                "The same with directories: the transaction that commits what the index has prepared, called directly, under \
                 the group's epoch and a new attempt each time."
            }
        });
        let mut rows = Vec::new();
        for is_shared in [true, false] {
            for clients in CLIENTS {
                let found = in_turn(ground, verb, clients, is_shared).await?;
                let [.., baseline] = &found;
                for (way, of) in Way::ALL.iter().zip(&found) {
                    let [rate, rate_ratio, p99, p99_ratio, lock, lwlock, most] = of.cells(baseline);
                    rows.push([
                        if is_shared { "for all" } else { "each" }.to_owned(),
                        count(clients as u64),
                        way.name().to_owned(),
                        rate,
                        rate_ratio,
                        p99,
                        p99_ratio,
                        lock,
                        lwlock,
                        most,
                        count(of.failed),
                    ]);
                }
            }
        }
        report.table(
            [
                "parent",
                "clients",
                "counts",
                "per second",
                "to textbook",
                "p99 ms",
                "to textbook",
                "Lock",
                "LWLock",
                "sessions",
                "failed",
            ],
            &rows,
        );
    }
    Ok(())
}

async fn in_turn(ground: &Ground<'_>, verb: Verb, clients: usize, is_shared: bool) -> Result<[Found; 4]> {
    let mut plots = Vec::new();
    for way in Way::ALL {
        plots.push(Plot::new(ground, verb, way, clients, is_shared).await?);
    }
    let mut found = <[Found; 4]>::default();
    for turn in 0..TURNS as usize {
        for at in 0..plots.len() {
            // Not always after the same one.
            let at = (at + turn) % plots.len();
            one_turn(ground, &plots[at], clients, &mut found[at]).await?;
            ground.settle().await?;
        }
    }
    Ok(found)
}

async fn one_turn(ground: &Ground<'_>, plot: &Plot, clients: usize, found: &mut Found) -> Result<()> {
    ground.choose(plot.way, clients).await?;
    let first = ground.block(IDS_PER_TURN * clients as i64).await?;
    let failed = AtomicU64::new(0);
    let failures = &failed;
    let period = ground.bench.period / 2 / TURNS;
    let changes = in_lanes(clients, period, |client, round| {
        // Ids of a client's own, the round's; more rounds than ids would be a machine of another age.
        let id = first + IDS_PER_TURN * client as i64 + round as i64 % IDS_PER_TURN;
        let session = &ground.sessions[client];
        async move {
            if !plot.change(session, ground, client, id).await? {
                failures.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }
    });
    let started = std::time::Instant::now();
    let (_, sample) = found.waits.during(ground.watcher, &ground.bench.database_role, changes).await?;
    found.lasted += started.elapsed();
    found.sample.merge(sample);
    found.failed += failed.into_inner();
    Ok(())
}
