//! `mantle import` of a listing, each time into a new namespace.

use anyhow::Result;

use super::{Before, COLUMNS, Measured, Options, in_turns};
use crate::{
    input::Input,
    measure::load::import_into,
    report::{Report, count},
};

pub async fn run(servers: &[Measured<'_>], options: &Options, report: &mut Report) -> Result<()> {
    report.heading("Import");
    let keys = Input::read(&options.listing)?.len() as u64;
    report.paragraph(&format!(
        "`mantle import` of a listing with {} different keys, rows only (no index), each turn into a new namespace. Before a \
         turn nothing is left to write: all servers have made a checkpoint. At the end all tables are vacuumed and analysed.",
        count(keys)
    ));
    let mut imports = 0;
    let found = in_turns(servers, Before::Checkpoint, async |at| {
        imports += 1;
        let (server, ns) = (&servers[at], format!("import-{imports}"));
        let id = server.admin.allocate_ids(1).await?;
        server.admin.create_namespace(&ns, id).await?;
        import_into(&options.mantle, &ns, &options.listing, server.url, "").await?;
        Ok(keys)
    })
    .await?;
    let mut rows = Vec::new();
    for (server, done) in servers.iter().zip(&found) {
        let [rate, rate_ratio, cpu, cpu_ratio, wal, wal_ratio, turns] = done.cells(&found[0]);
        rows.push([server.version.clone(), rate, rate_ratio, cpu, cpu_ratio, wal, wal_ratio, turns]);
        server.admin.vacuum().await?;
        server.admin.checkpoint().await?;
    }
    report.table(&format!("PostgreSQL | {COLUMNS}"), &rows);
    Ok(())
}
