//! The path cache's k: the time it saves and the memory it takes, on the listing's directories, in this process.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context, Result, bail};
use mantle_indexnode::{
    config::LookupSettings,
    index::{Effects, Index, Path, command::Command},
    lookup::{PathCache, PathQuery},
};
use mantle_types::{Caller, Epoch};

use super::{
    Options,
    tree::{NAMESPACE, ROOT, mix, record},
    writer::source_start,
};
use crate::{
    cpu,
    input::Input,
    report::{Report, count, short},
};

const LEVELS: [usize; 6] = [0, 1, 2, 3, 4, 5];
const LOOKUPS: usize = 400_000;
/// Lookups under one read guard, as in a replica.
const BATCH: usize = 64;

pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let input = Input::read(&options.listing)?;
    let (index, paths) = index_of(&input)?;
    let components: usize = paths.iter().map(|path| path.split('/').count()).sum();
    let caller = Caller { uid: 9, gids: vec![100] };
    let caches = LEVELS.map(|cache_levels| {
        PathCache::new(LookupSettings { cache_levels, cache_bytes_max: usize::MAX, ..LookupSettings::default() })
    });
    // Every directory once, to fill the cache.
    caches.iter().try_for_each(|cache| look_up(&index, cache, &caller, paths.iter().map(String::as_str)).map(drop))?;
    let mut times = [Duration::ZERO; LEVELS.len()];
    for turn in 0..options.turns {
        for (cache, time) in caches.iter().zip(&mut times) {
            let some = (0..LOOKUPS).map(|i| paths[mix((turn * LOOKUPS + i) as u64) as usize % paths.len()].as_str());
            *time += look_up(&index, cache, &caller, some)?;
        }
    }
    report.heading("The cache's k, in process");
    report.paragraph(&format!(
        "The {} directories of the listing ({} components on average, {} bytes each in the index), each looked up once before the \
         first turn. A turn is {} lookups, {BATCH} under one guard, without RPC; times are processor time. In the paper k = 3 \
         took 0.32 of the time without a cache, and 12 % of the memory of caching all; its IndexNode serves 6,700–7,800 lookups \
         a core.",
        count(paths.len() as u64),
        short(components as f64 / paths.len() as f64),
        short(index.heap_bytes() as f64 / index.directories() as f64),
        count(LOOKUPS as u64),
    ));
    let each = |time: Duration| time.as_secs_f64() * 1e9 / (LOOKUPS * options.turns) as f64;
    let full = caches[1].size().1 as f64;
    let rows: Vec<_> = LEVELS
        .iter()
        .zip(&caches)
        .zip(times)
        .map(|((level, cache), time)| {
            let (entries, bytes) = cache.size();
            let name = if *level == 0 { "off (baseline)".to_owned() } else { level.to_string() };
            let (ns, size) = (each(time), bytes as f64);
            let [ns_cell, ratio, share, a_directory] =
                [ns, ns / each(times[0]), size / full, size / index.directories() as f64].map(short);
            let [rate, entries, kib] = [(1e9 / ns) as u64, entries as u64, bytes as u64 >> 10].map(count);
            [name, ns_cell, ratio, rate, entries, kib, share, a_directory]
        })
        .collect();
    report.table("k | ns a lookup | ÷ off | lookups/s a core | entries | KiB | ÷ k = 1 | bytes a directory", &rows);
    Ok(())
}

/// Looks paths up; answers the processor time that this took.
pub fn look_up<'a>(
    index: &Index,
    cache: &PathCache,
    caller: &Caller,
    paths: impl Iterator<Item = &'a str>,
) -> Result<Duration> {
    let queries: Vec<_> = paths.map(|path| PathQuery { namespace: NAMESPACE, path: Path(path), caller }).collect();
    let before = cpu::own()?;
    let mut failed = None;
    for batch in queries.chunks(BATCH) {
        let mut lookups = cache.begin(index);
        lookups.resolve_all(batch, |answer| failed = answer.outcome.err().or(failed));
        let found = lookups.end();
        cache.fill(found);
    }
    if let Some(code) = failed {
        bail!("a lookup of the listing's directories: {code}");
    }
    Ok(cpu::own()? - before)
}

/// Builds an index of a listing's directories; answers it with their paths.
fn index_of(input: &Input) -> Result<(Index, Vec<String>)> {
    let mut ids: HashMap<String, u64> = HashMap::from([(String::new(), ROOT)]);
    let mut records = vec![record(0, NAMESPACE.to_owned(), ROOT, 1)];
    let mut paths = Vec::new();
    for at in 0..input.len() {
        let key = input.key(at);
        let Some((directory, _)) = key.rsplit_once('/') else { continue };
        if ids.contains_key(directory) {
            continue;
        }
        let ends = directory.match_indices('/').map(|(at, _)| at).chain([directory.len()]);
        let mut parent = ROOT;
        let mut start = 0;
        for end in ends {
            let (path, name) = (&directory[..end], &directory[start..end]);
            start = end + 1;
            parent = match ids.get(path) {
                Some(id) => *id,
                None => {
                    let id = ROOT + ids.len() as u64;
                    records.push(record(parent, name.to_owned(), id, 1));
                    ids.insert(path.to_owned(), id);
                    paths.push(path.to_owned());
                    id
                }
            };
        }
    }
    drop(ids);
    let (mut index, mut effects) = (Index::default(), Effects::default());
    let begin = Command::RebuildBegin { epoch: Epoch(1), is_diverged: false };
    let end = Command::RebuildEnd { sources: vec![source_start()] };
    for (at, command) in [begin, Command::RebuildChunk { records }, end].into_iter().enumerate() {
        index.apply(at as u64 + 1, command, &mut effects);
    }
    index.is_serving().then_some((index, paths)).context("the index does not serve after its rebuild")
}
