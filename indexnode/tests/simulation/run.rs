//! Runs one seed as one history, in a process of its own, and starts such processes.
//!
//! Crates keep counters for the whole process (seeds of hash tables, the fairness of `select!`), so a second history in the
//! same process would differ.

use std::{
    fmt,
    path::PathBuf,
    process::{Command, Stdio},
};

use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{faults::Faults, shim, world::World};

const VOTERS: usize = 3;
/// Share of the histories with a learner.
const WITH_LEARNER: f64 = 0.3;
const CLIENTS: usize = 4;
const BOOT_MS_MAX: u64 = 60_000;
const CHAOS_MS: std::ops::Range<u64> = 2_000..6_000;
/// Share of the histories that begin with programs of an older release on some hosts, or on all.
const UPGRADED: f64 = 0.5;
/// Step of the clock when nothing happens any more.
const SETTLE_STEP_MS: u64 = 5;
/// Share of the histories in which PostgreSQL has a synchronous standby.
const PROTECTED: f64 = 0.75;
const SETTLE_MS_MAX: u64 = 60_000;

/// The result of a history.
pub struct Report {
    /// Hash of its trace.
    pub hash: u64,
    /// Why it failed, if it did.
    pub violation: Option<String>,
    /// Its counts, for people.
    pub summary: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let violation = self.violation.as_deref().unwrap_or("none").replace('\n', " ");
        write!(f, "RESULT hash={:016x} {} violation={violation}", self.hash, self.summary)
    }
}

/// The directory of a process's disks; removed when dropped.
pub struct DiskDirectory(pub PathBuf);

impl DiskDirectory {
    /// A new directory, in memory where that is possible.
    pub fn new() -> Self {
        let memory = PathBuf::from("/dev/shm");
        let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let path = parent.join(format!("mantle-simulation-{}", std::process::id()));
        // A killed process leaves its disks, and process ids repeat: the hosts would begin with its directories.
        match std::fs::remove_dir_all(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => panic!("{}: {e}", path.display()),
            _ => {}
        }
        std::fs::create_dir_all(&path).expect("a directory for the simulated disks");
        Self(path)
    }
}

impl Drop for DiskDirectory {
    fn drop(&mut self) {
        // A directory that remains has a name that shows its origin.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `work` as a simulation: on its own thread, with random numbers from the seed.
pub fn simulate<T: Send + 'static>(seed: u64, work: impl FnOnce(&DiskDirectory) -> T + Send + 'static) -> T {
    let directory = DiskDirectory::new();
    shim::seed_randomness(seed);
    let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(move || {
        let result = work(&directory);
        drop(directory);
        result
    });
    thread.expect("a thread").join().expect("the simulation panicked")
}

/// Plays the history of a seed.
pub fn random_history(seed: u64, directory: &DiskDirectory, prints: bool) -> Report {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x6869_7374_6f72_7900);
    let is_protected = rng.random_bool(PROTECTED);
    let learners = usize::from(rng.random_bool(WITH_LEARNER));
    let mut world = World::new(seed, (VOTERS, learners), is_protected, &directory.0, prints);
    let hosts = world.hosts.len();
    let (is_upgraded, any_old) = (rng.random_bool(UPGRADED), rng.random_range(0..=hosts));
    for host in world.hosts.iter_mut().take(if is_upgraded { any_old } else { 0 }) {
        host.is_old = true;
    }
    (0..hosts).for_each(|host| world.start(host));
    if !world.run_until(BOOT_MS_MAX, |world| world.is_complete()) && world.violation.is_none() {
        world.violation = Some("the group does not come up".to_owned());
    }
    let booted = world.now_ms;
    world.start_clients(CLIENTS, &mut rng);
    let mut faults = Faults::new(StdRng::from_rng(&mut rng), booted);
    let chaos = rng.random_range(CHAOS_MS);
    world.run_until(chaos, |world| {
        faults.tick(world);
        false
    });
    faults.heal(&mut world);
    let healed = world.now_ms;
    world.stop_clients();
    world.step_ms = SETTLE_STEP_MS;
    (0..hosts).for_each(|host| world.start(host));
    if !world.run_until(SETTLE_MS_MAX, |world| world.now_ms > healed + 3_500 && world.is_quiet())
        && world.violation.is_none()
    {
        world.violation = Some("the group does not come to rest".to_owned());
    }
    if world.violation.is_none() {
        world.check_end();
    }
    report(&world, booted, faults.count)
}

/// Summarizes a world.
pub fn report(world: &World, booted: u64, faults: u64) -> Report {
    let (hash, events) = world.trace.sum();
    let (lookups, unanswered, acknowledged) = world.history.counts();
    let (transactions, renames, epoch) =
        world.server.with(|postgres| (postgres.timelines.wal().len(), postgres.attempts.len(), postgres.group().0));
    let timeline = world.server.with(|postgres| postgres.timelines.now);
    let settled = world.history.settled_count();
    let summary = format!(
        "events={events} ms={} boot={booted} faults={faults} transactions={transactions} renames={renames} acknowledged={acknowledged} lookups={lookups} settled={settled} unanswered={unanswered} states={} epoch={epoch} timeline={timeline}",
        world.now_ms,
        world.states_seen()
    );
    Report { hash, violation: world.violation.clone(), summary }
}

/// Starts this program again for one simulation. Returns its last line.
pub fn in_a_process(test: &str, variables: &[(&str, String)]) -> String {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .envs(variables.iter().map(|(name, value)| (*name, value.as_str())))
        .stderr(Stdio::piped())
        .output()
        .expect("this program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find(|line| line.contains("RESULT ")) {
        Some(line) => line[line.find("RESULT ").unwrap_or(0)..].to_owned(),
        None => format!("RESULT violation=it ended without one: {}", String::from_utf8_lossy(&output.stderr)),
    }
}
