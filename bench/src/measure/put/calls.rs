//! System calls and flushes of an object, by strace.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{KIB, MANY, NAMES, content};
use crate::{
    cpu::{Server, Servers},
    measure::{run_rounds, s3::Service},
    report::Report,
    system_calls::{self, Counting, Counts, family},
};

const BYTES: usize = 8 * KIB;
const CONNECTIONS: [usize; 2] = [1, MANY];
/// Objects of one connection, and of many together.
const OBJECTS: [usize; 2] = [300, 1_000];

pub(super) async fn run(report: &mut Report, services: [&Service; 2]) -> Result<()> {
    report.heading("System calls an object");
    let [(_, gateway), _] = processes(services[0], NAMES[0])?;
    if let Some(why) = system_calls::why_not(gateway[0]).await {
        report.paragraph(&format!("Not counted: {why}."));
        return Ok(());
    }
    report.paragraph(
        "Objects of 8 KiB. The calls of all threads of the gateway are counted, then those of all processes of PostgreSQL. strace stops \
         a process at each call, so with several connections more objects share a flush than above. Flushes: fsync and fdatasync.",
    );
    let body = &content()[..BYTES];
    let mut table = Vec::new();
    for (connections, objects) in CONNECTIONS.into_iter().zip(OBJECTS) {
        for (service, name) in services.into_iter().zip(NAMES) {
            for (process, pids) in processes(service, name)? {
                let call = Calls { service, body, prefix: format!("calls-{name}-{process}-{connections}") };
                for operation in ["PUT", "GET", "DELETE"] {
                    let counts = call.counted(operation, &pids, connections, objects).await?;
                    let [all, flushes, most] = counts.cells((objects / connections * connections) as u64);
                    let [operation, store, process] = [operation, name, process].map(str::to_owned);
                    table.push([operation, connections.to_string(), store, process, all, flushes, most]);
                }
            }
        }
    }
    report.table("operation | connections | bytes in | process | system calls | flushes | most frequent", &table);
    Ok(())
}

/// What to count: the gateway of a service, and all processes of its PostgreSQL.
fn processes(service: &Service, name: &str) -> Result<[(&'static str, Vec<i32>); 2]> {
    let of = |processes: &Servers, name: &str| processes.named(name).map(Server::pid);
    // The stack's own gateway has the files.
    let gateway = of(&service.processes, if name == NAMES[0] { "gateway" } else { name }).context("no gateway")?;
    let postgresql = of(&service.processes, "postgresql").context("no PostgreSQL")?;
    Ok([("gateway", vec![gateway]), ("PostgreSQL", family(postgresql)?)])
}

/// What is called while it is counted.
struct Calls<'a> {
    service: &'a Service,
    body: &'static [u8],
    prefix: String,
}

impl Calls<'_> {
    async fn counted(&self, operation: &str, pids: &[i32], connections: usize, objects: usize) -> Result<Counts> {
        let counting = Counting::begin(pids).await?;
        let call = |client: usize, round: usize| {
            let path = self.service.path(&format!("{}/{client}-{round}", self.prefix));
            async move {
                match operation {
                    "PUT" => self.service.s3.put(&path, None, self.body).await.map(drop),
                    "GET" => self.service.s3.get(&path).await.map(drop),
                    _ => self.service.s3.delete(&path).await,
                }
            }
        };
        run_rounds(connections, Duration::MAX, objects / connections, call).await?;
        counting.end().await
    }
}
