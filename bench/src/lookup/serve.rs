//! The measured process: index replicas without PostgreSQL, controlled by lines on standard input. Each line gets one
//! line as its answer.

use std::{
    fs::File,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use mantle_indexnode::{config::Config, index::command::Command, standalone::Standalone};
use mantle_types::{Caller, Epoch};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    runtime::{self, Handle, Runtime},
};

use super::{
    PATHS,
    group::REPLICAS,
    levels,
    tree::{LEVELS, Tree},
    writer::{Writer, make_one_by_one, source_start},
};
use crate::cpu;

/// Directories in one log entry, and entries in flight, while the tree is filled.
const FILL_RECORDS: usize = 2_000;
const FILL_ENTRIES: usize = 8;
const SNAPSHOT_PAUSE: Duration = Duration::from_millis(20);

/// Hold index replicas for `mantle-bench lookup`
#[derive(clap::Args)]
pub struct Options {
    #[arg(long)]
    directories: u64,
    #[arg(long, value_delimiter = ',')]
    addresses: Vec<String>,
    #[arg(long)]
    cache_levels: usize,
    #[arg(long, action = clap::ArgAction::Set)]
    log_batching: bool,
    #[arg(long, action = clap::ArgAction::Set)]
    invalidates_all: bool,
    #[arg(long, action = clap::ArgAction::Set)]
    has_tls: bool,
    #[arg(long)]
    folder: PathBuf,
}

/// Runs until standard input ends.
pub async fn serve(options: &Options) -> Result<()> {
    let tree = Tree::of(options.directories);
    let (mut replicas, mut threads) = (Vec::new(), Threads::default());
    for (at, _) in options.addresses.iter().enumerate() {
        let config = config(options, at)?;
        let start =
            threads.add(config.threads)?.spawn(async move { Standalone::start(config, "bench", at == 0).await });
        replicas.push(Arc::new(start.await??));
    }
    let leaders = threads.of(0);
    fill(&replicas[0], &tree).await?;
    for replica in &replicas {
        let node = replica.node();
        while !(node.state.is_serving() && node.membership().voter_ids().count() == replicas.len()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    println!("ready");
    let writer = Arc::new(Writer::default());
    let writing = leaders.spawn(writer.clone().run(replicas[0].clone(), tree));
    let snapshots = Arc::new(Snapshots::default());
    let building = leaders.spawn(snapshots.clone().run(replicas[0].clone()));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match line.split_once(' ') {
            Some(("write", per_second)) => {
                writer.per_second.store(per_second.parse()?, Ordering::Relaxed);
                println!("{}", writer.applied.load(Ordering::Relaxed));
            }
            Some(("snapshots", wanted)) => {
                snapshots.are_wanted.store(wanted.parse()?, Ordering::Relaxed);
                println!("{}", snapshots.built.load(Ordering::Relaxed));
            }
            Some(("make", how)) => {
                let (clients, seconds) = how.split_once(' ').context("`make` needs clients and seconds")?;
                let period = Duration::from_secs_f64(seconds.parse()?);
                let made = make_one_by_one(&replicas[0], tree, clients.parse()?, period, options.log_batching);
                let [directories, entries] = made.await?;
                println!("{directories} {entries}");
            }
            Some(("look_up", count)) => println!("{}", look_up_in_process(&replicas[0], &tree, count.parse()?)?),
            _ if line == "cpu" => println!("{}", cpu::own()?.as_secs_f64()),
            _ if line == "size" => {
                let state = replicas[0].node().state.clone();
                let (entries, bytes) = state.cache.size();
                let heap = state.read().index.heap_bytes();
                println!("{entries} {bytes} {heap}");
            }
            _ => bail!("unknown command `{line}`"),
        }
        std::io::stdout().flush()?;
    }
    writer.is_over.store(true, Ordering::Relaxed);
    writing.await??;
    building.abort();
    Ok(())
}

/// A runtime for each replica, so that it has the same threads as in a process of its own.
#[derive(Default)]
struct Threads(Vec<Runtime>);

impl Threads {
    fn add(&mut self, count: usize) -> Result<Handle> {
        self.0.push(runtime::Builder::new_multi_thread().worker_threads(count).enable_all().build()?);
        Ok(self.of(self.0.len() - 1))
    }

    fn of(&self, replica: usize) -> Handle {
        self.0[replica].handle().clone()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // A runtime cannot wait for its threads inside another runtime's task.
        self.0.drain(..).for_each(Runtime::shutdown_background);
    }
}

/// Measures lookups per second of processor time, without RPC.
fn look_up_in_process(replica: &Standalone, tree: &Tree, count: u64) -> Result<u64> {
    let paths: Vec<String> = (0..PATHS as u64).map(|choice| tree.path(LEVELS, choice).join("/")).collect();
    let state = replica.node().state.clone();
    let replicated = state.read();
    let caller = Caller { uid: 9, gids: vec![100] };
    let paths = paths.iter().map(String::as_str).cycle().take(count as usize);
    let time = levels::look_up(&replicated.index, &state.cache, &caller, paths)?;
    Ok((count as f64 / time.as_secs_f64()) as u64)
}

/// Builds one snapshot after the other while they are wanted.
#[derive(Default)]
struct Snapshots {
    are_wanted: AtomicBool,
    built: AtomicU64,
}

impl Snapshots {
    async fn run(self: Arc<Self>, leader: Arc<Standalone>) -> Result<()> {
        loop {
            if self.are_wanted.load(Ordering::Relaxed) {
                leader.snapshot().await?;
                self.built.fetch_add(1, Ordering::Relaxed);
            }
            // Raft builds no snapshot if nothing was applied since the last one.
            tokio::time::sleep(SNAPSHOT_PAUSE).await;
        }
    }
}

fn config(options: &Options, at: usize) -> Result<Config> {
    let folder = options.folder.join(at.to_string());
    std::fs::create_dir_all(&folder)?;
    let password = folder.join("password");
    // A replica refuses a password file that others may read.
    File::options().write(true).create(true).truncate(true).mode(0o600).open(&password)?.write_all(b"unused")?;
    let certificates = options.folder.join(REPLICAS);
    let file = |name: &str| certificates.join(name);
    let tls = format!(
        "[tls]\nca_file = {:?}\ncertificate_file = {:?}\nkey_file = {:?}\n",
        file("ca.crt"),
        file("own.crt"),
        file("own.key")
    );
    // No process listens on these addresses: a standalone replica answers no probes and uses no PostgreSQL.
    Config::parse(&format!(
        "group = 1\ndata_dir = {data:?}\nlisten = {listen:?}\nhttp_listen = \"127.0.0.1:9\"\npeers = {peers:?}\n\
         [postgres]\nhost = \"127.0.0.1\"\ndatabase = \"none\"\nuser = \"none\"\npassword_file = {password:?}\n\
         [raft]\nsnapshot_log_entries = 1000000000\nlog_batching = {batching}\n[lookup]\ncache_levels = {levels}\ninvalidation = \"{invalidation}\"\n{tls}",
        data = folder.join("data"),
        listen = options.addresses[at],
        peers = options.addresses,
        batching = options.log_batching,
        levels = options.cache_levels,
        invalidation = if options.invalidates_all { "all" } else { "range" },
        tls = if options.has_tls { &*tls } else { "" },
    ))
}

async fn fill(leader: &Standalone, tree: &Tree) -> Result<()> {
    leader.propose(&Command::RebuildBegin { epoch: Epoch(1), is_diverged: false }).await?;
    let mut records = tree.records();
    let chunks = std::iter::from_fn(move || {
        let chunk: Vec<_> = records.by_ref().take(FILL_RECORDS).collect();
        (!chunk.is_empty()).then_some(chunk)
    });
    stream::iter(chunks)
        .map(|records| async move { leader.propose(&Command::RebuildChunk { records }).await })
        .buffered(FILL_ENTRIES)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    leader.propose(&Command::RebuildEnd { sources: vec![source_start()] }).await?;
    Ok(())
}
