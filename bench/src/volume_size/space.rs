//! What the objects take: bytes on disk, in the volume and in PostgreSQL, and memory of the gateway.

use std::{fs, os::unix::fs::MetadataExt};

use anyhow::{Context, Result, ensure};
use mantle_volumes::{blocks_for, file_of, volumes_in};

use super::{
    Bench, MIB,
    load::Load,
    objects::OBJECT_BYTES,
    place::{Memory, Place, Running},
};
use crate::report::{Report, count, short};

/// Tables and indexes with fewer bytes an object are not shown.
const SHOWN_MIN: f64 = 0.5;

/// Bytes on disk after the load.
pub async fn on_disk(
    bench: &Bench<'_>,
    (place, gateway): (&Place, &Running),
    load: &Load,
    report: &mut Report,
) -> Result<()> {
    report.heading("Bytes on disk");
    let objects = bench.options.objects as f64;
    let payload = objects * OBJECT_BYTES as f64;
    let volumes = volumes_in(&bench.options.folder)?;
    ensure!(volumes.len() == 1, "{} has {} volumes", bench.options.folder.display(), volumes.len());
    let file = fs::metadata(file_of(&bench.options.folder, volumes[0])).context("the volume's file")?;
    let volume = bench.admin.only_volume().await?;
    let taken = blocks_for(volume.geometry()?, OBJECT_BYTES as u32) * volume.block_bytes;
    // The gateway renews its metrics some times a second.
    let has_all = async || place.probes.volume_bytes("used").await >= objects * f64::from(taken);
    gateway.until("to count all objects as used", has_all).await?;
    let used = place.probes.volume_bytes("used").await;
    let row = |what: &str, bytes: f64| {
        [what.to_owned(), count((bytes / MIB) as u64), short(bytes / objects), short(bytes / payload)]
    };
    let relations = bench.admin.relations().await?;
    let in_postgresql: f64 = relations.iter().map(|relation| relation.bytes as f64).sum();
    let rows = [
        row("payload", payload),
        row("volume: used blocks", used),
        row("volume: its file", file.len() as f64),
        row("volume: what the file has on disk", file.blocks() as f64 * 512.0),
        row("PostgreSQL: tables and indexes", in_postgresql),
        row("written by the disk during the load, for all processes", load.written),
        row("WAL of the load", load.wal),
    ];
    report.paragraph(
        "The file has room for more: it grows before it is full (`grow_percent`). WAL is removed after checkpoints, so it is not on disk all \
         at once.",
    );
    report.table("what | MiB | bytes an object | bytes a byte of payload", &rows);
    let shown: Vec<_> = relations
        .iter()
        .filter(|relation| relation.bytes as f64 / objects >= SHOWN_MIN)
        .map(|relation| {
            let index = relation.index.clone().unwrap_or_else(|| "(the table)".to_owned());
            let bytes = relation.bytes as f64;
            [relation.table.clone(), index, count((bytes / MIB) as u64), short(bytes / objects)]
        })
        .collect();
    report.paragraph(
        "PostgreSQL's tables and indexes, before any VACUUM but autovacuum's. `requests` keeps answers for a day.",
    );
    report.table("table | index | MiB | bytes an object", &shown);
    Ok(())
}

/// Memory of a gateway with the empty volume, after it has put all objects, and after a start with them.
pub async fn in_memory(bench: &Bench<'_>, [empty, loaded, started]: [Memory; 3], report: &mut Report) -> Result<()> {
    report.heading("Memory of the gateway");
    let volume = bench.admin.only_volume().await?;
    let blocks = u64::from(volume.segments) * volume.segment_blocks;
    let objects = volume.segment_blocks / u64::from(blocks_for(volume.geometry()?, OBJECT_BYTES as u32));
    report.paragraph(&format!(
        "The bitmaps have a bit a block: {} segments × {} blocks, {} MiB. While a gateway takes a segment over it also holds the locators \
         of that segment, up to {} of such objects.",
        count(volume.segments.into()),
        count(volume.segment_blocks),
        short(blocks as f64 / 8.0 / MIB),
        count(objects),
    ));
    let row = |what: &str, memory: Memory| {
        [
            what.to_owned(),
            short(memory.resident / MIB),
            short((memory.resident - empty.resident) / MIB),
            short(memory.peak / MIB),
        ]
    };
    report.table(
        "gateway | resident, MiB | more than with the empty volume | peak, MiB",
        &[
            row("started, empty volume", empty),
            row("after all objects were put", loaded),
            row("started with all objects", started),
        ],
    );
    Ok(())
}
