//! `mantle.put_object` in PostgreSQL alone, by elements a batch: what a commit, and a call, are shared by.

use anyhow::Result;

use super::{Bench, in_lanes};
use crate::{
    report::{Report, count, short},
    sql::{Session, Store},
};

/// Elements a batch, and sessions at once.
const ROWS: [(usize, usize); 8] = [(1, 2), (1, 8), (1, 32), (8, 8), (64, 2), (64, 8), (512, 2), (512, 8)];
const SESSIONS_MAX: usize = 32;
const DIRECTORIES: usize = 512;
/// New ids of one measurement.
const IDS: i64 = 8_000_000;

/// Measures.
pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let admin = Session::connect(&bench.admin_url).await?;
    admin.make_textbook().await?;
    let measured = measure(bench, &admin, report).await;
    admin.drop_textbook().await?;
    measured
}

async fn measure(bench: &Bench, admin: &Session, report: &mut Report) -> Result<()> {
    report.heading("put_object by batch, PostgreSQL alone");
    let ns = format!("{}-puts", bench.ns);
    bench.rest.create_namespace(&ns).await?;
    let mut lanes = Vec::new();
    for _ in 0..SESSIONS_MAX {
        let session = Session::connect(&bench.database_url).await?;
        let puts = [session.prepare_puts(Store::Mantle).await?, session.prepare_puts(Store::Textbook).await?];
        lanes.push((session, puts));
    }
    let first = &lanes[0].0;
    let ns_id = first.namespace(&ns).await?;
    let first_directory = first.allocate_ids(DIRECTORIES as i64).await?;
    for at in 0..DIRECTORIES as i64 {
        first.mkdir(ns_id, ns_id, &format!("d{at}"), first_directory + at).await?;
    }
    admin.textbook_counts(ns_id, first_directory, first_directory + DIRECTORIES as i64 - 1).await?;
    first.wait_for_vacuum().await?;
    let mut rows = Vec::new();
    for (batch, sessions) in ROWS {
        let mut measured = [[0.0; 2]; 2];
        for (rates, spread) in measured.iter_mut().zip([1, DIRECTORIES]) {
            for (store, rate) in rates.iter_mut().enumerate() {
                let first_id = first.allocate_ids(IDS).await?;
                let lane_ids = IDS / sessions as i64;
                let (calls, _) = in_lanes(sessions, bench.period / 2, |lane, round| {
                    let from = first_id + lane_ids * lane as i64 + (round * batch) as i64;
                    // A session's own directory, or one after the other.
                    let pids: Vec<i64> =
                        (0..batch).map(|i| first_directory + ((lane + i % spread) % DIRECTORIES) as i64).collect();
                    let (session, puts) = &lanes[lane];
                    async move { session.put_objects(&puts[store], ns_id, pids, from).await }
                })
                .await?;
                *rate = calls * batch as f64;
            }
        }
        let [one, spread] = measured.map(|[mantle, textbook]| [count(mantle as u64), short(mantle / textbook)]);
        let [[one, to_textbook], [spread, spread_to_textbook]] = [one, spread];
        rows.push([count(batch as u64), count(sessions as u64), one, to_textbook, spread, spread_to_textbook]);
    }
    report.paragraph(&format!(
        "New objects, direct sessions, prepared, `fsync` on. All elements of a batch in one directory of the session's own, or \
         spread over {DIRECTORIES}. Textbook (baseline): the same rows into a table with the same indexes, and an UPDATE of each \
         directory's row of counts; it asks of nothing whether it may.",
    ));
    report.table(
        ["elements a batch", "sessions", "one directory: puts/s", "to textbook", "spread: puts/s", "to textbook"],
        &rows,
    );
    Ok(())
}
