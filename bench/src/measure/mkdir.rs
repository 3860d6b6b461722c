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
const CLIENTS: usize = 16;
const REST: &str = "REST, acknowledged by the index";
const SQL: &str = "PostgreSQL alone (baseline)";

pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    report.heading("mkdir, one client");
    let ns = format!("{}-mkdir", bench.ns);
    bench.rest.create_namespace(&ns).await?;
    for parent in ["rest", "sql", "many-rest", "many-sql"] {
        bench.rest.mkdir(&ns, parent).await?;
    }
    let session = Session::connect(&bench.options.pooler).await?;
    let ns_id = session.namespace(&ns).await?;
    let pid = session.child(ns_id, ns_id, "sql").await?;
    let first_id = session.allocate_ids((TURN + bench.options.calls) as i64).await?;
    session.wait_for_vacuum().await?;
    let (mut rest, mut sql) = (Sample::default(), Sample::default());
    for turn in 0..=bench.options.calls / TURN {
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
    let row = |name: &str, sample: &Sample| {
        let [p50, p99] = sample.cells();
        [name.to_owned(), count(sample.len() as u64), p50, p99]
    };
    let [p50, p99] = rest.ratio_cells(&sql);
    let ratio = ["ratio".to_owned(), String::new(), p50, p99];
    report.table("mkdir | calls | p50 ms | p99 ms", &[row(REST, &rest), row(SQL, &sql), ratio]);
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
    let sessions = Session::several(&bench.options.pooler, CLIENTS).await?;
    let (sql_rate, sql) = run_clients(CLIENTS, bench.period, |client, round| {
        let id = first_id + IDS_PER_CLIENT * client as i64 + round as i64;
        let (session, name) = (&sessions[client], format!("d{client}-{round}"));
        async move { session.mkdir(ns_id, pid, &name, id).await }
    })
    .await?;
    report.paragraph("All clients write to one parent directory.");
    let row = |name: &str, rate: f64, sample: &Sample| {
        let [p50, p99] = sample.cells();
        [name.to_owned(), count(rate as u64), p50, p99]
    };
    let [p50, p99] = rest.ratio_cells(&sql);
    let ratio = ["ratio".to_owned(), short(rest_rate / sql_rate), p50, p99];
    let rows = [row(REST, rest_rate, &rest), row(SQL, sql_rate, &sql), ratio];
    report.table("mkdir | per second | p50 ms | p99 ms", &rows);
    Ok(())
}
