//! One change a call, in PostgreSQL alone, so that only the database makes the difference between the ways.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use super::{Measured, Rates, Setting, Way};
use crate::{
    measure::{rotation, run_clients},
    plot::{self, Series},
    report::{Report, count},
    sql::{Move, Session, Store},
};

pub const CLIENTS: [usize; 4] = [1, 4, 16, 64];
pub const TURNS: u32 = 3;
/// Ids of one client's turn.
const IDS_PER_TURN: i64 = 20_000;
const PLOT_FILE: &str = "mkdirs-by-clients.svg";
const PLOT_TITLE: &str = "mkdirs in one directory, by the way counts are kept";
const COLUMNS: &str =
    "parent | clients | counts | per second | to textbook | p99 ms | to textbook | Lock | LWLock | sessions | failed";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Mkdir,
    RenameObject,
    RenameDirectory,
}

impl Verb {
    /// The verb's name, and the paragraph above its table.
    pub fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Mkdir => (
                "mkdir",
                "`auto`, `always`, `never`: `mantle.mkdir` under that value of `mantle.delta_records`. `auto` updates the \
                 parent's record in place if nobody holds it, and otherwise appends a delta record. `always` appends a delta \
                 record; `never` waits and updates in place. `textbook` is the baseline: tables and a function of the bench \
                 (`bench/src/sql/textbook.sql`) that insert the entry, update the parent's row and record request ids alike, \
                 without latches, checks or change-stream messages. Direct sessions, one directory a call, the ways in turn. \
                 Lock and LWLock: sessions that waited for one, on average; then what most of them waited for.",
            ),
            Self::RenameObject => (
                "rename of an object",
                "Each client's object moves to and fro between two directories, so both parents' counts change: two hot \
                 directories for all clients, or two for each. Every way updates the parents in the order of ids. Failed: \
                 deadlocks and lock timeouts, which count in p99 but not in the throughput.",
            ),
            Self::RenameDirectory => (
                "rename of a directory",
                "The same with directories. The bench calls the transaction that commits a prepared rename, under the group's \
                 epoch and with a new attempt each time.",
            ),
        }
    }
}

/// One client's entry, which is renamed to and fro between two directories.
struct Entry {
    id: i64,
    name: String,
    renames: AtomicU64,
}

/// The directories and entries of one way, the same in all its turns.
pub struct Workload {
    way: Way,
    /// A pair for all clients, or one each.
    parents: Vec<i64>,
    entries: Vec<Entry>,
}

impl Workload {
    pub async fn new(setting: &Setting<'_>, verb: Verb, way: Way, clients: usize, is_shared: bool) -> Result<Self> {
        let parents = setting.parents(way, if is_shared { 2 } else { 2 * clients }).await?;
        let mut workload = Self { way, parents, entries: Vec::new() };
        if verb == Verb::Mkdir {
            return Ok(workload);
        }
        for client in 0..clients {
            let (session, home, id) = (&setting.sessions[client], workload.home(client).0, setting.ids(1).await?);
            let name = match (verb, way.store) {
                (Verb::RenameObject, Store::Mantle) => {
                    let put = session.prepare_puts(Store::Mantle).await?;
                    session.put_objects(&put, setting.ns, vec![home], id).await?;
                    format!("o{id}")
                }
                // The textbook has no objects: it makes directories in their place.
                _ => {
                    session.mkdirs(way.store, setting.ns, home, &[id]).await?;
                    format!("d{id}/")
                }
            };
            workload.entries.push(Entry { id, name, renames: AtomicU64::new(0) });
        }
        Ok(workload)
    }

    /// The two directories of a client, equal for all if they share them.
    fn home(&self, client: usize) -> (i64, i64) {
        let at = 2 * client % self.parents.len();
        (self.parents[at], self.parents[at + 1])
    }

    /// Makes one change; false after a deadlock or a lock timeout.
    async fn change(&self, session: &Session, setting: &Setting<'_>, client: usize, id: i64) -> Result<bool> {
        let (here, there) = self.home(client);
        let Some(entry) = self.entries.get(client) else {
            session.mkdirs(self.way.store, setting.ns, here, &[id]).await?;
            return Ok(true);
        };
        let is_back = entry.renames.load(Ordering::Relaxed) % 2 == 1;
        let (source, destination) = if is_back { (there, here) } else { (here, there) };
        let name = entry.name.as_str();
        let Setting { ns, signer, .. } = setting;
        let (source, destination) = ((source, name), (destination, name));
        let of = Move { ns: *ns, source, destination, id: entry.id, attempt: id, signer };
        let done = session.rename(self.way.store, &of).await?;
        if done {
            entry.renames.fetch_add(1, Ordering::Relaxed);
        }
        Ok(done)
    }
}

pub async fn run(setting: &Setting<'_>, report: &mut Report) -> Result<()> {
    for verb in [Verb::Mkdir, Verb::RenameObject, Verb::RenameDirectory] {
        let (name, description) = verb.texts();
        report.heading(&format!("{name}, by the way counts are kept"));
        report.paragraph(description);
        let (mut rows, mut shared) = (Vec::new(), Way::ALL.map(|way| Series { name: way.legend, points: Vec::new() }));
        for is_shared in [true, false] {
            for clients in CLIENTS {
                let found = in_turn(setting, verb, Way::ALL, clients, is_shared).await?;
                let [.., baseline] = &found;
                for ((way, of), series) in Way::ALL.iter().zip(&found).zip(&mut shared) {
                    if is_shared {
                        series.points.push((clients as u64, of.per_second() as u64));
                    }
                    let [rate, rate_ratio, p99, p99_ratio, lock, lwlock, most] = of.cells(baseline);
                    let parent = if is_shared { "for all" } else { "each" }.to_owned();
                    let (clients, way, failed) = (count(clients as u64), way.name.to_owned(), count(of.failed));
                    rows.push([parent, clients, way, rate, rate_ratio, p99, p99_ratio, lock, lwlock, most, failed]);
                }
            }
        }
        if verb == Verb::Mkdir {
            report.plot(PLOT_FILE, PLOT_TITLE, draw_mkdirs(&shared)?);
        }
        report.table(COLUMNS, &rows);
    }
    Ok(())
}

/// mkdirs per second by clients, all in one directory; a line for each way.
fn draw_mkdirs(series: &[Series]) -> Result<String> {
    plot::draw(PLOT_TITLE, "clients, each a session of PostgreSQL", "mkdirs per second", series)
}

/// Mantle as it is by default, and the textbook; each client has directories of its own.
pub async fn against_textbook(setting: &Setting<'_>) -> Result<Vec<Rates>> {
    let [auto, .., textbook] = Way::ALL;
    let mut rates = Vec::new();
    for (verb, clients) in [(Verb::Mkdir, &CLIENTS[..1]), (Verb::RenameDirectory, &CLIENTS[..])] {
        for sessions in clients.iter().copied() {
            let [mantle, textbook] = in_turn(setting, verb, [auto, textbook], sessions, false).await?;
            let [mantle, textbook] = [mantle, textbook].map(|measured| measured.per_second());
            rates.push(Rates { verb: verb.texts().0, sessions, mantle, textbook });
        }
    }
    Ok(rates)
}

async fn in_turn<const N: usize>(
    setting: &Setting<'_>,
    verb: Verb,
    ways: [Way; N],
    clients: usize,
    is_shared: bool,
) -> Result<[Measured; N]> {
    let mut workloads = Vec::new();
    for way in ways {
        workloads.push(Workload::new(setting, verb, way, clients, is_shared).await?);
    }
    let mut found = std::array::from_fn(|_| Measured::default());
    for (_, at) in rotation(TURNS, workloads.len()) {
        one_turn(setting, &workloads[at], clients, &mut found[at]).await?;
        setting.watcher.wait_for_compaction().await?;
    }
    Ok(found)
}

/// Adds one turn of a way; it lasts its part of half of the setting's period.
pub async fn one_turn(setting: &Setting<'_>, workload: &Workload, clients: usize, found: &mut Measured) -> Result<()> {
    setting.choose(workload.way, clients).await?;
    let first = setting.ids(IDS_PER_TURN * clients as i64).await?;
    let failed = AtomicU64::new(0);
    let failures = &failed;
    let period = setting.period / 2 / TURNS;
    let changes = run_clients(clients, period, |client, round| {
        // Each client has ids of its own; no machine does more rounds than there are ids.
        let id = first + IDS_PER_TURN * client as i64 + round as i64 % IDS_PER_TURN;
        let session = &setting.sessions[client];
        async move {
            if !workload.change(session, setting, client, id).await? {
                failures.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }
    });
    let work = async { Ok((changes.await?.1, ())) };
    found.add(setting.watcher, setting.role, work).await?;
    found.failed += failed.into_inner();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The plot shows the figures of its page, so a change of either needs the other.
    #[test]
    fn the_committed_plot_shows_the_committed_page() {
        // Asked at run time: clones share a target folder, and with it a program that another clone has built.
        let docs = format!("{}/../docs", std::env::var("CARGO_MANIFEST_DIR").unwrap());
        let page = std::fs::read_to_string(format!("{docs}/bench-contention.md")).unwrap();
        let mut shared = Way::ALL.map(|way| Series { name: way.legend, points: Vec::new() });
        let table = page.lines().skip_while(|line| !line.starts_with("## mkdir")).skip(1);
        for line in table.take_while(|line| !line.starts_with("## ")) {
            let [_, "for all", clients, way, rate, ..] = line.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
                continue;
            };
            let number = |cell: &str| cell.replace(',', "").parse().unwrap();
            let at = Way::ALL.iter().position(|one| one.name == way).unwrap();
            shared[at].points.push((number(clients), number(rate)));
        }
        assert!(shared.iter().all(|series| series.points.len() == CLIENTS.len()));
        let svg = draw_mkdirs(&shared).unwrap();
        assert!(svg == std::fs::read_to_string(format!("{docs}/{PLOT_FILE}")).unwrap(), "{svg}");
    }
}
