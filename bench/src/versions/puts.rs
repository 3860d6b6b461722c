//! `mantle.put_object` called in SQL, as in the measurement of puts (`measure/puts.rs`).

use std::time::Duration;

use anyhow::Result;

use super::{Before, COLUMNS, Measured, in_turns};
use crate::{
    measure::{
        contention::{Setting, Way},
        run_clients,
    },
    report::{Report, count},
    sql::Store,
};

/// Elements a call, sessions at once, directories of a call.
const ROWS: [(usize, usize, usize); 4] = [(1, 1, 1), (1, 8, 1), (64, 8, 1), (64, 8, DIRECTORIES)];
const SESSIONS_MAX: usize = 8;
const DIRECTORIES: usize = 512;
/// New ids of one turn.
const IDS: i64 = 8_000_000;

pub async fn run(
    servers: &[Measured<'_>],
    settings: &[Setting<'_>],
    period: Duration,
    report: &mut Report,
) -> Result<()> {
    report.heading("New objects");
    report.paragraph(&format!(
        "`mantle.put_object` by prepared statements. All elements of a call go to one directory of the session's own, or \
         spread over {DIRECTORIES} that all sessions share."
    ));
    let (mut directories, mut statements) = (Vec::new(), Vec::new());
    for setting in settings {
        directories.push(setting.parents(Way::ALL[0], DIRECTORIES).await?);
        let mut prepared = Vec::new();
        for session in &setting.sessions[..SESSIONS_MAX] {
            prepared.push(session.prepare_puts(Store::Mantle).await?);
        }
        statements.push(prepared);
    }
    let mut rows = Vec::new();
    for (batch, sessions, spread) in ROWS {
        let found = in_turns(servers, Before::Nothing, async |at| {
            let (setting, statements, directories) = (&settings[at], &statements[at], &directories[at]);
            let first_id = setting.ids(IDS).await?;
            let client_ids = IDS / sessions as i64;
            let (_, sample) = run_clients(sessions, period, |client, round| {
                let from = first_id + client_ids * client as i64 + (round * batch) as i64;
                let pids = (0..batch).map(|i| directories[(client + i % spread) % DIRECTORIES]).collect();
                setting.sessions[client].put_objects(&statements[client], setting.ns, pids, from)
            })
            .await?;
            Ok((sample.len() * batch) as u64)
        })
        .await?;
        for (server, done) in servers.iter().zip(&found) {
            let [rate, rate_ratio, cpu, cpu_ratio, wal, wal_ratio, turns] = done.cells(&found[0]);
            let [batch, sessions, spread] = [batch, sessions, spread].map(|of| count(of as u64));
            let version = server.version.clone();
            rows.push([batch, sessions, spread, version, rate, rate_ratio, cpu, cpu_ratio, wal, wal_ratio, turns]);
        }
    }
    report.table(&format!("objects a call | sessions | directories | PostgreSQL | {COLUMNS}"), &rows);
    Ok(())
}
