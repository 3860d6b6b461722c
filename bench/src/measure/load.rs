//! Bulk load, and the index's memory.

use std::{path::Path, process::Stdio};

use anyhow::{Context, Result, bail};
use mantle_index_client::Status;
use tokio::process::Command;

use super::Bench;
use crate::report::{Report, count, short};

/// Loads a listing into a new namespace with `mantle import`; answers the command's summary.
pub async fn import(bench: &Bench, ns: &str, listing: &Path) -> Result<String> {
    bench.rest.create_namespace(ns).await?;
    import_into(&bench.options.mantle, ns, listing, &bench.options.stack.database, &bench.options.stack.index).await
}

/// The same into an existing namespace. Without an index its addresses are empty.
pub async fn import_into(mantle: &Path, ns: &str, listing: &Path, database: &str, index: &str) -> Result<String> {
    let mut command = Command::new(mantle);
    match index {
        "" => command.env_remove("MANTLE_INDEX"),
        _ => command.env("MANTLE_INDEX", index),
    };
    let output = command
        .args(["import", "--namespace", ns])
        .arg(listing)
        .env("MANTLE_IMPORT_URL", database)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .await
        .with_context(|| format!("cannot run {}", mantle.display()))?;
    if !output.status.success() {
        bail!("mantle import ended with {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

async fn statuses(bench: &Bench) -> Result<Vec<(String, Status)>> {
    let answers = bench.index.status().await.into_iter();
    answers.map(|(address, answer)| Ok((address.clone(), answer.context(address)?))).collect()
}

pub async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    report.heading("Bulk load");
    let before = statuses(bench).await?;
    let summary = import(bench, &bench.ns, &bench.options.listing).await?;
    report.paragraph(
        "`mantle import` of the listing into an empty namespace: rows in PostgreSQL *and* directories applied by all \
         replicas; the time runs from the start of the command to the last replica's confirmation.",
    );
    report.block(&summary);
    report.heading("Memory of a replica");
    let mut rows = Vec::new();
    for ((_, before), (address, after)) in before.iter().zip(statuses(bench).await?) {
        let per = |bytes: u64, directories: u64| short(bytes as f64 / directories.max(1) as f64);
        let (directories, resident) = (after.directories, after.resident_bytes);
        let grown = resident.saturating_sub(before.resident_bytes);
        let new = directories.saturating_sub(before.directories);
        let [index, all, growth] = [per(after.index_bytes, directories), per(resident, directories), per(grown, new)];
        rows.push([address, count(directories), index, all, growth]);
    }
    report.table(
        "replica | directories | index bytes/directory | resident bytes/directory, all of the process | growth of resident bytes/new directory",
        &rows,
    );
    Ok(())
}
