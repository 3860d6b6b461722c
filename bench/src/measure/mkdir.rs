//! mkdir over REST, acknowledged by the index, against the same mkdir in PostgreSQL alone, in turns.

use anyhow::Result;

use super::{Bench, run_clients, timed};
use crate::{
    report::{Report, count, short},
    sample::Sample,
    sql::Session,
};

/// Calls in one turn; the first turn of each kind warms up. With single calls in turn, the index would still apply the
/// other kind's directory.
const TURN: usize = 100;
/// Clients at once, for the throughput.
const CLIENTS: usize = 16;

/// Makes directories with one client, then with many.
pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    report.heading("mkdir, one client");
    let ns = format!("{}-mkdir", bench.ns);
    bench.rest.create_namespace(&ns).await?;
    for parent in ["rest", "sql", "many-rest", "many-sql"] {
        bench.rest.mkdir(&ns, parent).await?;
    }
    let session = Session::connect(&bench.pooler_url).await?;
    let ns_id = session.namespace(&ns).await?;
    let pid = session.child(ns_id, ns_id, "sql").await?;
    let first_id = session.allocate_ids((TURN + bench.calls) as i64).await?;
    session.wait_for_vacuum().await?;
    let (mut rest, mut sql) = (Sample::default(), Sample::default());
    for turn in 0..=bench.calls / TURN {
        if turn == 1 {
            (rest, sql) = (Sample::default(), Sample::default());
        }
        for call in turn * TURN..(turn + 1) * TURN {
            timed(&mut rest, bench.rest.mkdir(&ns, &format!("rest/d{call}"))).await?;
        }
        for call in turn * TURN..(turn + 1) * TURN {
            timed(&mut sql, session.mkdir(ns_id, pid, &format!("d{call}"), first_id + call as i64)).await?;
        }
    }
    report.paragraph(
        "REST: lookup of the parent, one SQL call through the pooler, and the wait until the index has applied the new \
         directory. Baseline: the same SQL call through the same pooler, with neither lookup nor index. In turns of \
         100 calls, so that both meet the same machine; started when no table is being vacuumed.",
    );
    let calls = [count(rest.len() as u64), count(sql.len() as u64), String::new()];
    table("mkdir | calls | p50 ms | p99 ms", calls, [&rest, &sql], report);
    many(bench, report, &ns, ns_id, &session).await
}

/// Several clients at once: the gateway gathers calls that arrive together.
async fn many(bench: &Bench, report: &mut Report, ns: &str, ns_id: i64, session: &Session) -> Result<()> {
    report.heading(&format!("mkdir, {CLIENTS} clients"));
    let clients: Vec<_> = (0..CLIENTS).map(|_| bench.rest.another()).collect();
    let (rest_rate, rest) = run_clients(CLIENTS, bench.period, |client, round| {
        let (client, path) = (&clients[client], format!("many-rest/d{client}-{round}"));
        async move { client.mkdir(ns, &path).await }
    })
    .await?;
    let pid = session.child(ns_id, ns_id, "many-sql").await?;
    const IDS_PER_CLIENT: i64 = 1_000_000;
    let first_id = session.allocate_ids(IDS_PER_CLIENT * CLIENTS as i64).await?;
    let sessions = Session::several(&bench.pooler_url, CLIENTS).await?;
    let (sql_rate, sql) = run_clients(CLIENTS, bench.period, |client, round| {
        let id = first_id + IDS_PER_CLIENT * client as i64 + round as i64;
        let (session, name) = (&sessions[client], format!("d{client}-{round}"));
        async move { session.mkdir(ns_id, pid, &name, id).await }
    })
    .await?;
    report.paragraph("All clients write to one parent directory.");
    let rates = [count(rest_rate as u64), count(sql_rate as u64), short(rest_rate / sql_rate)];
    table("mkdir | per second | p50 ms | p99 ms", rates, [&rest, &sql], report);
    Ok(())
}

/// REST, PostgreSQL alone, and their ratio; `second` has the cells of the second column.
fn table(headings: &str, second: [String; 3], [rest, sql]: [&Sample; 2], report: &mut Report) {
    let names = ["REST, acknowledged by the index", "PostgreSQL alone (baseline)", "ratio"].map(str::to_owned);
    let figures = [rest.cells(), sql.cells(), rest.ratio_cells(sql)];
    let rows = names.into_iter().zip(second).zip(figures).map(|((name, cell), [p50, p99])| [name, cell, p50, p99]);
    report.table(headings, &rows.collect::<Vec<_>>());
}
