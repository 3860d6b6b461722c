//! The other side of the measurement: a process with one or three index replicas that no PostgreSQL feeds, told by lines
//! on its standard input what to do, and its handle.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use mantle_indexnode::{
    config::Config,
    detached::Detached,
    index::command::{Command, SourceBatch, SourceId, SourceStart, StreamTransaction},
};
use mantle_types::{
    Epoch, Lineage, Lsn,
    message::{DirectoryOp, DirectoryRecord},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
};

use super::tree::{MADE_LATER, Tree, record};

/// Directories of one entry while the tree is filled, and entries under way at once.
const FILL_RECORDS: usize = 2_000;
const FILL_ENTRIES: usize = 8;
/// The writer proposes so often.
const TICK: Duration = Duration::from_millis(2);
const SOURCE: SourceId = SourceId(0);

/// Hold index replicas for `mantle-bench lookup`
#[derive(clap::Args)]
pub struct Options {
    #[arg(long)]
    directories: u64,
    #[arg(long, value_delimiter = ',')]
    addresses: Vec<String>,
    #[arg(long)]
    cache_levels: usize,
    #[arg(long)]
    folder: PathBuf,
}

/// Runs until standard input ends.
pub async fn serve(options: &Options) -> Result<()> {
    let tree = Tree::of(options.directories);
    let mut replicas = Vec::new();
    for (at, _) in options.addresses.iter().enumerate() {
        let config = config(options, at)?;
        replicas.push(Arc::new(Detached::start(config, "bench", at == 0).await?));
    }
    fill(&replicas[0], &tree).await?;
    for replica in &replicas {
        let node = replica.node();
        while !(node.state.is_serving() && node.membership().voter_ids().count() == replicas.len()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    println!("ready");
    let writer =
        Arc::new(Writer { per_second: AtomicU64::new(0), applied: AtomicU64::new(0), is_over: AtomicBool::new(false) });
    let writing = tokio::spawn(writer.clone().run(replicas[0].clone(), tree));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match line.split_once(' ') {
            Some(("write", per_second)) => {
                writer.per_second.store(per_second.parse()?, Ordering::Relaxed);
                println!("{}", writer.applied.load(Ordering::Relaxed));
            }
            _ if line == "cpu" => println!("{}", cpu_seconds()?),
            _ if line == "size" => {
                let state = replicas[0].node().state.clone();
                let (entries, bytes) = state.cache.size();
                let heap = state.read().index.heap_bytes();
                println!("{entries} {bytes} {heap}");
            }
            _ => bail!("`{line}` is no command"),
        }
        std::io::stdout().flush()?;
    }
    writer.is_over.store(true, Ordering::Relaxed);
    writing.await??;
    Ok(())
}

fn config(options: &Options, at: usize) -> Result<Config> {
    let folder = options.folder.join(at.to_string());
    std::fs::create_dir_all(&folder)?;
    // Nothing listens here: a detached replica answers no probes, and asks no PostgreSQL.
    Config::parse(&format!(
        "group = 1\ndata_dir = {data:?}\nlisten = {listen:?}\nhttp_listen = \"127.0.0.1:9\"\npeers = {peers:?}\n\
         [postgres]\nhost = \"none\"\ndatabase = \"none\"\nuser = \"none\"\npassword_file = {password:?}\n\
         [raft]\nsnapshot_log_entries = 1000000000\n[lookup]\ncache_levels = {levels}\n",
        data = folder.join("data"),
        listen = options.addresses[at],
        peers = options.addresses,
        password = write_password(&folder)?,
        levels = options.cache_levels,
    ))
}

fn write_password(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("password");
    std::fs::write(&path, "unused")?;
    Ok(path)
}

/// The one source, of which nothing is streamed but what the bench makes up.
pub fn start() -> SourceStart {
    let lineage = Lineage { system_identifier: 1, timeline: 1 };
    SourceStart { source: SOURCE, lineage, consistent_point: Lsn(1), copied: Lsn(1) }
}

async fn fill(leader: &Detached, tree: &Tree) -> Result<()> {
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
    leader.propose(&Command::RebuildEnd { sources: vec![start()] }).await?;
    Ok(())
}

/// Changes directories at a given rate: of ten operations seven make one, two remove one, one renames one among the
/// directories that were there before, and so empties a part of the cache.
struct Writer {
    per_second: AtomicU64,
    applied: AtomicU64,
    is_over: AtomicBool,
}

impl Writer {
    async fn run(self: Arc<Self>, leader: Arc<Detached>, tree: Tree) -> Result<()> {
        let (mut lsn, mut next, mut oldest) = (10, 0_u64, 0_u64);
        let mut ticks = tokio::time::interval(TICK);
        let mut owed = 0.0;
        let mut last = Instant::now();
        while !self.is_over.load(Ordering::Relaxed) {
            ticks.tick().await;
            let per_second = self.per_second.load(Ordering::Relaxed) as f64;
            owed = (owed + per_second * last.elapsed().as_secs_f64()).min(per_second / 5.0);
            last = Instant::now();
            let count = owed as u64;
            if count == 0 {
                continue;
            }
            owed -= count as f64;
            let mut transactions = Vec::new();
            for _ in 0..count {
                lsn += 1;
                let op = some_op(&tree, next, &mut oldest);
                next += 1;
                transactions.push(StreamTransaction { commit_lsn: Lsn(lsn), ops: vec![op] });
            }
            let batch = SourceBatch { source: SOURCE, transactions, position: Lsn(lsn + 1) };
            leader.propose(&Command::Stream(vec![batch])).await?;
            self.applied.fetch_add(count, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn made(tree: &Tree, number: u64, version: u64) -> DirectoryRecord {
    record(tree.some_id(9, number), format!("made {number}"), MADE_LATER + number, version)
}

fn some_op(tree: &Tree, number: u64, oldest: &mut u64) -> DirectoryOp {
    match number % 10 {
        7 | 8 if *oldest < number => {
            *oldest += 1;
            // Every tenth number made nothing; its removal finds nothing.
            DirectoryOp::Remove { record: made(tree, *oldest - 1, 2), cause: None }
        }
        9 => {
            let id = tree.some_id(8, number);
            let moved = record(tree.some_id(7, number), format!("moved {id}"), id, 2 + number);
            DirectoryOp::Put { record: moved, cause: None }
        }
        _ => DirectoryOp::Put { record: made(tree, number, 1), cause: None },
    }
}

/// Processor time that this process has used, in seconds.
pub fn cpu_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // utime and stime, in hundredths of a second, are the 14th and 15th field; the name was the second.
    let hundredths: u64 =
        fields.get(11..13).context("/proc/self/stat is short")?.iter().map(|f| f.parse::<u64>().unwrap_or(0)).sum();
    Ok(hundredths as f64 / 100.0)
}

/// A running group, as the measuring process sees it.
pub struct Group {
    /// Where the replicas listen; the first leads.
    pub addresses: Vec<String>,
    /// What it holds.
    pub tree: Tree,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _folder: tempfile::TempDir,
}

impl Group {
    /// Starts a process with so many replicas, and waits until they are filled.
    pub async fn start(directories: u64, replicas: usize, cache_levels: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut addresses = Vec::new();
        {
            // Held together, so that the system gives different ones.
            let sockets =
                (0..replicas).map(|_| std::net::TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
            for socket in &sockets {
                addresses.push(socket.local_addr()?.to_string());
            }
        }
        let mut child = tokio::process::Command::new(std::env::current_exe()?)
            .arg("index-replicas")
            .args(["--directories", &directories.to_string(), "--addresses", &addresses.join(",")])
            .args(["--cache-levels", &cache_levels.to_string(), "--folder"])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = child.stdin.take().context("no standard input")?;
        let output = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        let tree = Tree::of(directories);
        let mut group = Self { addresses, tree, child, input, output, _folder: folder };
        let answer = group.answer().await?;
        ensure!(answer == "ready", "the replicas said `{answer}`");
        Ok(group)
    }

    async fn answer(&mut self) -> Result<String> {
        self.output.next_line().await?.context("the replicas' process ended")
    }

    async fn ask(&mut self, line: &str) -> Result<String> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        self.answer().await
    }

    /// Processor time of the process, in seconds.
    pub async fn cpu(&mut self) -> Result<f64> {
        Ok(self.ask("cpu").await?.parse()?)
    }

    /// Changes so many directories a second from now on; how many were changed until now.
    pub async fn write(&mut self, per_second: u64) -> Result<u64> {
        Ok(self.ask(&format!("write {per_second}")).await?.parse()?)
    }

    /// Cached prefixes, their bytes, and the index's.
    pub async fn size(&mut self) -> Result<[usize; 3]> {
        let answer = self.ask("size").await?;
        let numbers: Vec<usize> = answer.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        numbers.try_into().map_err(|_| anyhow::anyhow!("size answered `{answer}`"))
    }

    /// Ends the process.
    pub async fn stop(mut self) -> Result<()> {
        drop(self.input);
        self.child.wait().await?;
        Ok(())
    }
}
