//! Rebuild of the index from PostgreSQL beside the index that serves. The bench drops the slot to cause it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Bench;
use crate::{
    report::{Report, count, short},
    sql::Session,
};

const GROUP: i32 = 1;
const ROUNDS: usize = 3;
const POLL: Duration = Duration::from_millis(5);
const BOUND: Duration = Duration::from_secs(120);

pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    report.heading("Rebuild of the index from PostgreSQL");
    let admin = Session::connect(&bench.options.stack.admin).await?;
    admin.wait_for_vacuum().await?;
    let mut rows = rounds(bench, &admin, "as loaded").await?;
    admin.vacuum().await?;
    rows.extend(rounds(bench, &admin, "vacuumed").await?);
    report.paragraph(
        "The bench drops the slot; the leader notices it and rebuilds. The time runs from the new epoch until the leader follows \
         the new slot. It includes the slot's creation, the copy, three replicas' logs and the change from the old tree to the \
         new one. Baseline: COPY of the same rows to a client that drops them. As loaded: before or during the first \
         autovacuum; vacuumed: after it.",
    );
    report.table(
        "directories | the table | seconds | directories/s | COPY alone (baseline): directories/s | rebuild ÷ COPY",
        &rows,
    );
    Ok(())
}

async fn rounds(bench: &Bench, admin: &Session, table: &str) -> Result<Vec<[String; 6]>> {
    let mut rows = Vec::new();
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let copied = admin.copy_directories().await?;
        let copy = copied as f64 / started.elapsed().as_secs_f64();
        let (directories, elapsed) = rebuild(bench, admin).await?;
        let rate = directories as f64 / elapsed.as_secs_f64();
        let [number, rate_cell, copy_cell] = [directories, rate as u64, copy as u64].map(count);
        let seconds = short(elapsed.as_secs_f64());
        rows.push([number, table.to_owned(), seconds, rate_cell, copy_cell, short(rate / copy)]);
    }
    Ok(rows)
}

/// Causes a rebuild and waits for it; answers the directories and the duration.
async fn rebuild(bench: &Bench, admin: &Session) -> Result<(u64, Duration)> {
    let epoch = bench.index.status().await.iter().flat_map(|(_, status)| status).map(|status| status.epoch).max();
    let epoch = epoch.context("no index replica answers")?;
    admin.drop_slot(GROUP).await?;
    let dropped = Instant::now();
    let mut begun = None;
    while dropped.elapsed() < BOUND {
        for (_, status) in bench.index.status().await {
            // A replica that does not answer now may answer later.
            let Some(status) = status.ok().filter(|status| status.epoch > epoch) else { continue };
            let begun = *begun.get_or_insert_with(Instant::now);
            if status.streaming {
                return Ok((status.directories, begun.elapsed()));
            }
        }
        tokio::time::sleep(POLL).await;
    }
    bail!("the index was not rebuilt within {BOUND:?} after its slot was dropped")
}
