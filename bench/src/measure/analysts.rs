//! Analysts' queries on the loaded namespace, as the owner and as an analyst with a grant (row-level security).

use std::time::Instant;

use anyhow::Result;

use super::Bench;
use crate::{
    report::{Report, count, short},
    sql::{Analysis, Session},
};

pub const CALLS: usize = 3;

/// Runs a query [`CALLS`] times; answers its number of rows and the median of the seconds.
pub async fn ask(session: &Session, analysis: Analysis, ns: &str) -> Result<(usize, f64)> {
    let (mut seconds, mut answered) = (Vec::new(), 0);
    for _ in 0..CALLS {
        let started = Instant::now();
        answered = session.analyse(analysis, ns).await?;
        seconds.push(started.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok((answered, seconds[CALLS / 2]))
}

pub fn name(analysis: Analysis) -> String {
    format!("`{}`", analysis.0.replace("$1", "ns"))
}

pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let sessions =
        [Session::connect(&bench.options.stack.admin).await?, Session::connect(&bench.options.stack.admin).await?];
    sessions[0].wait_for_vacuum().await?;
    sessions[1].become_analyst(&bench.ns).await?;
    let mut rows = Vec::new();
    for analysis in Analysis::ALL {
        let (_, owner) = ask(&sessions[0], analysis, &bench.ns).await?;
        let (answered, analyst) = ask(&sessions[1], analysis, &bench.ns).await?;
        rows.push([name(analysis), count(answered as u64), short(owner), short(analyst)]);
    }
    report.heading("Analysts' queries");
    report.paragraph(&format!(
        "On {} loaded keys and the directories above them. Seconds, median of {CALLS} calls. Analyst: under row-level security.",
        count(bench.input.len() as u64)
    ));
    report.table("statement | rows | owner, s | analyst, s", &rows);
    Ok(())
}
