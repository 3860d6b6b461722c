//! Changes one a call by sessions that meet in one directory, or in two. The workloads are those of the contention
//! measurement (`measure/contention/`).

use anyhow::Result;

use super::{Before, COLUMNS, Measured, in_turns};
use crate::{
    measure::contention::{
        self, Setting, Way,
        single::{Verb, Workload, one_turn},
    },
    report::{Report, count, short},
};

const SESSIONS: [usize; 3] = [1, 16, 64];

pub async fn run(servers: &[Measured<'_>], settings: &[Setting<'_>], report: &mut Report) -> Result<()> {
    report.heading("Changes by sessions that meet");
    report.paragraph(
        "mkdir: all sessions in one directory. Renames: each session's entry to and fro between the same two directories. \
         `textbook` is a baseline that checks nothing and updates the parent's row (`bench/src/sql/textbook.sql`): what \
         another version buys there, PostgreSQL alone buys. The last column: what most sessions waited for, on average.",
    );
    for server in servers {
        server.admin.make_textbook().await?;
    }
    let [auto, .., textbook] = Way::ALL;
    let mut rows = Vec::new();
    for (verb, way) in
        [(Verb::Mkdir, auto), (Verb::Mkdir, textbook), (Verb::RenameObject, auto), (Verb::RenameDirectory, auto)]
    {
        for sessions in SESSIONS {
            let mut workloads = Vec::new();
            for setting in settings {
                workloads.push(Workload::new(setting, verb, way, sessions, true).await?);
            }
            let mut changes = vec![contention::Measured::default(); servers.len()];
            let found = in_turns(servers, Before::Nothing, async |at| {
                let before = changes[at].done();
                one_turn(&settings[at], &workloads[at], sessions, &mut changes[at]).await?;
                Ok(changes[at].done() - before)
            })
            .await?;
            for ((server, done), of) in servers.iter().zip(&found).zip(&changes) {
                let name =
                    if way == auto { verb.texts().0.to_owned() } else { format!("{}, textbook", verb.texts().0) };
                let [rate, rate_ratio, cpu, cpu_ratio, wal, wal_ratio, turns] = done.cells(&found[0]);
                let p99 = [of.sample.p99_ms(), of.sample.p99_ms() / changes[0].sample.p99_ms()].map(short);
                let ([p99, p99_ratio], waits) = (p99, of.waits.most());
                let (sessions, version) = (count(sessions as u64), server.version.clone());
                rows.push([
                    name, sessions, version, rate, rate_ratio, cpu, cpu_ratio, wal, wal_ratio, turns, p99, p99_ratio,
                    waits,
                ]);
            }
        }
    }
    report.table(&format!("change | sessions | PostgreSQL | {COLUMNS} | p99 ms | to first | sessions wait"), &rows);
    Ok(())
}
