//! What analysts ask of a loaded namespace, as the owner and as an analyst to whom it was granted (row-level security).

use std::time::Instant;

use anyhow::Result;

use super::Bench;
use crate::{
    report::{Report, count, short},
    sql::{Analysis, Session},
};

const CALLS: usize = 3;

/// Measures.
pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let sessions = [Session::connect(&bench.admin_url).await?, Session::connect(&bench.admin_url).await?];
    sessions[0].wait_for_vacuum().await?;
    sessions[1].become_analyst(&bench.ns).await?;
    let mut rows = Vec::new();
    for analysis in Analysis::ALL {
        let (mut medians, mut answered) = ([0.0; 2], 0);
        for (session, median) in sessions.iter().zip(&mut medians) {
            let mut seconds = Vec::new();
            for _ in 0..CALLS {
                let started = Instant::now();
                answered = session.analyse(analysis, &bench.ns).await?;
                seconds.push(started.elapsed().as_secs_f64());
            }
            seconds.sort_by(f64::total_cmp);
            *median = seconds[CALLS / 2];
        }
        let [owner, analyst] = medians.map(short);
        rows.push([format!("`{}`", analysis.text().replace("$1", "ns")), count(answered as u64), owner, analyst]);
    }
    report.heading("What analysts ask");
    report.paragraph(&format!(
        "Of {} loaded keys and the directories above them. Seconds, the middle one of {CALLS}. Analyst: under row-level security.",
        count(bench.input.len() as u64)
    ));
    report.table(["statement", "rows", "owner, s", "analyst, s"], &rows);
    Ok(())
}
