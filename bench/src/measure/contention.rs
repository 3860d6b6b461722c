//! Many sessions that make directories in one directory, by how its counts are kept: the paper's ablation of delta records
//! (Mantle, section 6.3). In PostgreSQL alone, one directory a call, so that nothing but the database tells them apart.

use std::time::Duration;

use anyhow::Result;

use super::{Bench, in_lanes};
use crate::{
    report::{Report, count, short},
    sql::Session,
};

const SESSIONS: [usize; 4] = [1, 4, 16, 64];
/// Of `mantle.delta_records`; the last is the baseline.
const MODES: [&str; 3] = ["auto", "always", "never"];
/// New ids of one measurement.
const IDS: i64 = 4_000_000;
/// How often the waiting sessions are counted.
const LOOK: Duration = Duration::from_millis(50);

/// What one measurement found.
struct Found {
    per_second: f64,
    p99_ms: f64,
    waiting: f64,
}

/// Measures.
pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    report.heading("mkdir in one directory, by the way its counts are kept");
    let ns = format!("{}-contention", bench.ns);
    bench.rest.create_namespace(&ns).await?;
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS[SESSIONS.len() - 1] {
        sessions.push(Session::connect(&bench.database_url).await?);
    }
    let watcher = Session::connect(&bench.database_url).await?;
    let ns_id = watcher.namespace(&ns).await?;
    watcher.wait_for_vacuum().await?;
    let mut rows = Vec::new();
    for is_shared in [true, false] {
        for clients in SESSIONS {
            let mut found = Vec::new();
            for mode in MODES {
                for session in &sessions[..clients] {
                    session.set_delta_records(mode).await?;
                }
                found.push(one(bench, &sessions[..clients], &watcher, ns_id, is_shared).await?);
            }
            let baseline = &found[MODES.len() - 1];
            for (mode, of) in MODES.iter().zip(&found) {
                rows.push([
                    if is_shared { "one for all" } else { "one each" }.to_owned(),
                    count(clients as u64),
                    (*mode).to_owned(),
                    count(of.per_second as u64),
                    short(of.per_second / baseline.per_second),
                    short(of.p99_ms),
                    short(of.waiting),
                ]);
            }
        }
    }
    report.paragraph(
        "`mantle.delta_records`: `auto` updates the directory's record in place if it is free and appends a delta record \
         if it is held; `always` appends; `never` waits for the record, as an UPDATE of the parent does (baseline). Direct \
         sessions, one directory a call, half of the usual time each. Waiting: sessions that waited for a lock, on average.",
    );
    report.table(["parent", "sessions", "counts", "per second", "to `never`", "p99 ms", "waiting"], &rows);
    Ok(())
}

async fn one(bench: &Bench, sessions: &[Session], watcher: &Session, ns: i64, is_shared: bool) -> Result<Found> {
    let first_id = watcher.allocate_ids(IDS).await?;
    let mut parents = Vec::new();
    for at in 0..if is_shared { 1 } else { sessions.len() as i64 } {
        watcher.mkdir(ns, ns, &format!("p{}", first_id + at), first_id + at).await?;
        parents.push(first_id + at);
    }
    let ids = (IDS - parents.len() as i64) / sessions.len() as i64;
    let mkdirs = in_lanes(sessions.len(), bench.period / 2, |lane, round| {
        let id = first_id + parents.len() as i64 + ids * lane as i64 + round as i64;
        let (session, parent) = (&sessions[lane], parents[lane % parents.len()]);
        async move { session.mkdir(ns, parent, &format!("d{id}"), id).await }
    });
    let mut looks = Vec::new();
    let watch = async {
        loop {
            looks.push(watcher.waiting().await?);
            tokio::time::sleep(LOOK).await;
        }
    };
    let (per_second, sample) = tokio::select! {
        found = mkdirs => found?,
        failed = watch => return failed,
    };
    let waiting = looks.iter().sum::<i64>() as f64 / looks.len().max(1) as f64;
    Ok(Found { per_second, p99_ms: sample.p99_ms(), waiting })
}
