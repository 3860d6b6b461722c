//! `mantle import`: loads a listing into a namespace. Phases: read the listing into a tree (its memory depends on the
//! entries, not on the text), order it, make the directories level by level, make the objects, wait for the index.
//! Invariant: no line is dropped silently. Each line is loaded, exists already, or is named in the report.

mod directories;
mod listing;
mod load;
mod objects;
mod order;
mod progress;
mod report;
mod session;
mod size;
pub mod summary;
mod tree;

use std::{
    env,
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use mantle_index_client::{IndexClient, Status};
use mantle_types::{GroupId, NamespaceId, limits::KEY_BYTES_MAX, name::check_namespace_name};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use self::{
    listing::Lines,
    load::{Load, Loaded},
    order::{Order, Refusal},
    progress::Progress,
    report::{Finding, Report},
    session::{Session, interrupted},
    summary::Summary,
    tree::{Insertion, Tree},
};
use crate::{
    IndexOptions, connect,
    database_url::DatabaseUrl,
    exit::{Exit, failure},
    output::Output,
    replicas,
    replicas::Nodes,
    sql,
};

/// Lines between two checks for an interruption.
const LINES_PER_LOOK: u64 = 16_384;
const READ_BYTES: usize = 1 << 20;

#[derive(clap::Args)]
#[command(long_about = "Load a list of paths into a namespace, at the speed of COPY.\n\n\
    The listing has one entry a line: `path`, or `path<TAB>bytes`. A path that ends in `/` is a directory; missing parents \
    are made. The last tab of a line separates the size; without sizes, synthetic ones are made from the seed and labelled \
    so. Lines that cannot be loaded are refused and reported: duplicate paths (the first stays), paths that are both \
    file and directory (the directory stays), names and keys over the limits, `.`, `..`, empty components, NUL, text that \
    is not UTF-8.\n\n\
    The import can be repeated: a second run loads what the first left, and counts what was there. It ends when every \
    replica of the index has applied it.")]
pub struct Options {
    /// The namespace (bucket) to load into; it must exist
    #[arg(long, short, value_name = "NAME")]
    namespace: String,
    /// The list of paths; `-` is standard input
    #[arg(value_name = "LISTING")]
    listing: PathBuf,
    /// Write one row for each line that was refused or is remarkable: line, path, code, reason (tab-separated)
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Seed of the synthetic sizes
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Connections to PostgreSQL
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=64))]
    connections: u8,
    /// Numeric id of the principal in whose name entries are made (0: superuser)
    #[arg(long, value_name = "UID", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    principal: i32,
    /// Direct PostgreSQL URL (not a pooler) of a role in mantle_importer. Without it, the URL of DATABASE_URL
    #[arg(long = "database", env = "MANTLE_IMPORT_URL", value_name = "URL", hide_env_values = true)]
    database: Option<DatabaseUrl>,
    #[command(flatten)]
    index: IndexOptions,
}

pub async fn run(options: Options, output: Output) -> Result<Exit> {
    let cancel = CancellationToken::new();
    tokio::spawn(cancel_on_ctrl_c(cancel.clone()));
    let summary = import(options, cancel).await?;
    output.text(&summary);
    output.answer(&summary.answer());
    Ok(Exit::Fine)
}

/// The database that the other commands use: one role may be for all.
fn database_of_environment() -> Result<DatabaseUrl> {
    let refused = |why: String| failure(Exit::Usage, why);
    let url = env::var("DATABASE_URL")
        .map_err(|_| refused("which database? Give --database, MANTLE_IMPORT_URL or DATABASE_URL".to_owned()))?;
    url.parse().map_err(|error| refused(format!("DATABASE_URL: {error:#}")))
}

async fn cancel_on_ctrl_c(cancel: CancellationToken) {
    if tokio::signal::ctrl_c().await.is_ok() {
        eprintln!("mantle: stopping after the calls under way (Ctrl-C again: at once)");
        cancel.cancel();
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(Exit::Interrupted.code().into());
        }
    }
}

async fn import(options: Options, cancel: CancellationToken) -> Result<Summary> {
    let started = Instant::now();
    check_namespace_name(&options.namespace)?;
    // Wrong arguments fail here, before the listing is read and without further attempts.
    let database = options.database.map_or_else(database_of_environment, Ok)?;
    drop(connect::connect_first(&database).await?);
    let index = (!options.index.replicas.is_empty()).then(|| options.index.client()).transpose()?;
    let ns = namespace(&database, &options.namespace).await?;
    let report = Report::create(options.report.as_deref()).map_err(|error| {
        failure(
            Exit::Usage,
            format!("cannot write the report {:?}: {error}", options.report.clone().unwrap_or_default()),
        )
    })?;

    let (listing, flag) = (options.listing.clone(), cancel.clone());
    let read = tokio::task::spawn_blocking(move || read(&listing, report, &flag));
    let parsed = tokio::select! {
        parsed = read => parsed.context("reading the listing")??,
        () = cancel.cancelled() => return Err(interrupted()),
    };
    let Parsed { tree, order, report, lines, key_bytes, elapsed: parse } = parsed;
    permit_keys(&database, ns, tree.levels(), key_bytes).await?;

    let load = Load {
        url: database,
        principal: options.principal,
        ns,
        tree,
        order,
        modified: chrono::Utc::now(),
        seed: options.seed,
        connections: options.connections.into(),
        cancel: cancel.clone(),
        report: Mutex::new(report),
    };
    let mut phases = vec![("parse", parse)];
    let loaded = load_all(&load, &mut phases).await;
    // The report keeps the findings up to a failure.
    load.report.lock().flush().context("cannot write the report")?;
    let (directories, objects) = loaded?;
    let mut replicas = None;
    if let Some(index) = index {
        let progress = Progress::spinner("index");
        replicas = Some(tokio::select! {
            replicas = wait_for_index(&load.url, &options.namespace, &index, &progress) => replicas?,
            () = cancel.cancelled() => return Err(interrupted()),
        });
        phases.push(("index", progress.finish()));
    }
    Ok(Summary {
        namespace: options.namespace,
        lines,
        directories,
        objects,
        has_synthetic_sizes: load.order.has_synthetic_sizes(&load.tree),
        seed: load.seed,
        report: load.report.into_inner(),
        phases,
        elapsed: started.elapsed(),
        replicas,
    })
}

async fn namespace(url: &DatabaseUrl, name: &str) -> Result<NamespaceId> {
    let answer = Session::new(url, sql::NAMESPACE).call(&[&name]).await.context("looking the namespace up")?;
    match answer.rows.first().and_then(|row| row.get::<_, Option<i64>>(0)) {
        Some(ns) => Ok(ns.into()),
        None => Err(failure(
            Exit::Usage,
            format!("there is no namespace {name}; create it first (PUT /v1/ns/{name}, or CreateBucket)"),
        )),
    }
}

/// Renames of directories trust that no key is larger than was permitted.
async fn permit_keys(url: &DatabaseUrl, ns: NamespaceId, levels: usize, bytes: usize) -> Result<()> {
    let (levels, bytes) = (i32::try_from(levels)?, i32::try_from(bytes)?);
    let permitted = Session::new(url, sql::RAISE_KEY_SIZE).call(&[&ns.as_i64(), &levels, &bytes]).await;
    permitted.map(drop).context("permitting the listing's longest keys")
}

async fn load_all(load: &Load, phases: &mut Vec<(&'static str, Duration)>) -> Result<(Loaded, Loaded)> {
    let progress = Progress::bar("directories", load.order.walk.len() as u64);
    let (known, directories) = load.directories(&progress).await?;
    phases.push(("directories", progress.finish()));
    let progress = Progress::bar("objects", load.order.objects.len() as u64);
    let objects = load.objects(&known, &progress).await?;
    phases.push(("objects", progress.finish()));
    Ok((directories, objects))
}

/// Waits until all replicas of the namespace's group have applied the import.
async fn wait_for_index(
    url: &DatabaseUrl,
    namespace: &str,
    index: &IndexClient,
    progress: &Progress,
) -> Result<Vec<(String, Status)>> {
    let answer = Session::new(url, sql::ASSIGNMENT).call(&[&namespace]).await.context("asking for the index group")?;
    let group = answer.rows.first().and_then(|row| row.get::<_, Option<i32>>(0)).context("the namespace is gone")?;
    let index = &index.of_group(GroupId::from(group));
    let nodes = Nodes::connect(url).await?;
    let positions = nodes.flushed().await.context("asking for the flush positions")?;
    replicas::wait_applied(index, &positions, |message| progress.say(message)).await
}

struct Parsed {
    tree: Tree,
    order: Order,
    report: Report,
    lines: u64,
    /// Of the longest key, with a slash at its end.
    key_bytes: usize,
    elapsed: Duration,
}

/// Reads and orders the listing. Blocks the thread.
fn read(listing: &Path, mut report: Report, cancel: &CancellationToken) -> Result<Parsed> {
    let progress = Progress::spinner("parse");
    let mut tree = Tree::default();
    let (lines, key_bytes) = if listing == Path::new("-") {
        read_lines(io::stdin().lock(), &mut tree, &mut report, &progress, cancel)
    } else {
        let refused = |error| failure(Exit::Usage, format!("cannot open the listing {}: {error}", listing.display()));
        let file = File::open(listing).map_err(refused)?;
        read_lines(BufReader::with_capacity(READ_BYTES, file), &mut tree, &mut report, &progress, cancel)
    }
    .with_context(|| format!("reading {}", listing.display()))?;
    progress.say(format!("lines read, {} MiB; ordering", tree.heap_bytes() >> 20));
    let order = Order::new(&tree);
    for (at, refusal) in &order.refused {
        let object = &tree.objects[*at as usize];
        let (finding, reason) = match refusal {
            Refusal::Duplicate { line } => (Finding::Duplicate, format!("is on line {line} already")),
            Refusal::IsDirectory { line } => {
                let reason = format!("is a directory, too (line {line}); the directory stays");
                (Finding::refused(mantle_types::ErrorCode::IsDirectory), reason)
            }
        };
        report.add(object.line.into(), tree.object_path(object).as_bytes(), finding, &reason)?;
    }
    Ok(Parsed { tree, order, report, lines, key_bytes, elapsed: progress.finish() })
}

/// Answers the number of lines, and the bytes of the longest key.
fn read_lines(
    input: impl BufRead,
    tree: &mut Tree,
    report: &mut Report,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<(u64, usize)> {
    let mut lines = Lines::new(input);
    let (mut count, mut key_bytes) = (0, 0);
    while let Some(line) = lines.next()? {
        count = line.number;
        let number = u32::try_from(count).context("the listing has more than 2^32 lines; split it")?;
        if count.is_multiple_of(LINES_PER_LOOK) {
            progress.add(LINES_PER_LOOK);
            if cancel.is_cancelled() {
                return Err(interrupted());
            }
        }
        let item = match line.parse() {
            Ok(item) => item,
            Err(malformed) => {
                let (finding, reason) = malformed.finding();
                report.add(count, line.bytes, finding, &reason)?;
                continue;
            }
        };
        key_bytes = key_bytes.max((item.key.len() + 1).min(KEY_BYTES_MAX));
        let (finding, reason) = match tree.insert(number, &item) {
            Ok(Insertion::Taken) if item.key.is_ascii() => continue,
            Ok(Insertion::Taken) => (Finding::NotAscii, "the path is not ASCII; that is allowed".to_owned()),
            Ok(Insertion::ListedBefore { line }) => (Finding::Duplicate, format!("is on line {line} already")),
            Err(error) => (Finding::refused(error.code()), error.detail().to_owned()),
        };
        report.add(count, item.key.as_bytes(), finding, &reason)?;
    }
    Ok((count, key_bytes))
}
