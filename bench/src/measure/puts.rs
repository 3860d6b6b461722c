//! `mantle.put_object` in PostgreSQL alone, by elements a batch: what a commit, and a call, are shared by.

use anyhow::Result;

use super::{Bench, in_lanes};
use crate::{
    report::{Report, count, short},
    sql::Session,
};

const BATCHES: [usize; 4] = [1, 8, 64, 512];
/// Sessions at once. One element a call waits for its own flush, so it takes more of them to keep the processors busy.
const SESSIONS: usize = 8;
const DIRECTORIES: usize = 512;
/// New ids of one measurement.
const IDS: i64 = 8_000_000;

/// Measures.
pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    report.heading("put_object by batch, PostgreSQL alone");
    let ns = format!("{}-puts", bench.ns);
    bench.rest.create_namespace(&ns).await?;
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(Session::connect(&bench.database_url).await?);
    }
    let ns_id = sessions[0].namespace(&ns).await?;
    let first_directory = sessions[0].allocate_ids(DIRECTORIES as i64).await?;
    for at in 0..DIRECTORIES as i64 {
        sessions[0].mkdir(ns_id, ns_id, &format!("d{at}"), first_directory + at).await?;
    }
    let put = sessions[0].prepare_puts().await?;
    let mut puts = vec![put];
    for session in &sessions[1..] {
        puts.push(session.prepare_puts().await?);
    }
    sessions[0].wait_for_vacuum().await?;
    let mut rows = Vec::new();
    let mut singles = [0.0; 2];
    for batch in BATCHES {
        let mut rates = [0.0; 2];
        for (rate, spread) in rates.iter_mut().zip([1, DIRECTORIES]) {
            let first_id = sessions[0].allocate_ids(IDS).await?;
            let lane_ids = IDS / SESSIONS as i64;
            let (calls, _) = in_lanes(SESSIONS, bench.period, |lane, round| {
                let from = first_id + lane_ids * lane as i64 + (round * batch) as i64;
                // A session's own directory, or one after the other.
                let pids: Vec<i64> =
                    (0..batch).map(|i| first_directory + ((lane + i % spread) % DIRECTORIES) as i64).collect();
                let (session, put) = (&sessions[lane], &puts[lane]);
                async move { session.put_objects(put, ns_id, pids, from).await }
            })
            .await?;
            *rate = calls * batch as f64;
        }
        if batch == 1 {
            singles = rates;
        }
        rows.push([
            count(batch as u64),
            count(rates[0] as u64),
            short(rates[0] / singles[0]),
            count(rates[1] as u64),
            short(rates[1] / singles[1]),
        ]);
    }
    report.paragraph(&format!(
        "New objects over {SESSIONS} direct sessions, prepared, `fsync` on. All elements of a batch in one directory of the \
         session's own, or spread over {DIRECTORIES}.",
    ));
    report.table(
        ["elements a batch", "one directory: puts/s", "to batch of 1", "spread: puts/s", "to batch of 1"],
        &rows,
    );
    Ok(())
}
