//! `mantle data status`: the volumes, as PostgreSQL knows them, and how much is inside PostgreSQL itself.

use anyhow::Result;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use tokio_postgres::Row;

use crate::{
    connect::{self, DatabaseOptions},
    exit::Exit,
    output::Output,
    sql, table,
};

#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    database: DatabaseOptions,
}

/// The answer of `mantle data status --json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Answer {
    /// In the order of their numbers.
    volumes: Vec<Volume>,
    /// Bytes on disk of the small objects that are inside PostgreSQL.
    inline_bytes: i64,
}

/// A volume.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Volume {
    /// The volume's number.
    volume: i32,
    /// The folder in which the volume was made, or its device.
    name: String,
    /// `active`, `read_only`, `draining` or `lost`, as it was set.
    state: String,
    /// When a gateway last mounted it; null: never.
    mounted: Option<String>,
    /// How often the volume was mounted.
    mount_epoch: i64,
    /// Whether its last mount was recorded after PostgreSQL's last failover or restore. If not, its gateway has not come back.
    is_current: bool,
    /// Bytes of a block.
    block_bytes: i32,
    /// Bytes of a segment.
    segment_bytes: i64,
    /// Number of segments.
    segments: i32,
    /// Segments that are leased to its gateway.
    leased: i32,
    /// Segments that were used and are leased to no gateway.
    released: i32,
    /// Segments that were never used.
    unused: i32,
}

fn volume(row: &Row) -> Result<Volume, tokio_postgres::Error> {
    let block_bytes: i32 = row.try_get("block_bytes")?;
    let mounted: Option<DateTime<Utc>> = row.try_get("mounted")?;
    Ok(Volume {
        volume: row.try_get("volume")?,
        name: row.try_get("name")?,
        state: row.try_get("state")?,
        mounted: mounted.map(|time| time.to_rfc3339_opts(SecondsFormat::Secs, true)),
        mount_epoch: row.try_get("mount_epoch")?,
        is_current: row.try_get::<_, Option<bool>>("is_current")?.unwrap_or(false),
        block_bytes,
        segment_bytes: row.try_get::<_, i64>("segment_blocks")? * i64::from(block_bytes),
        segments: row.try_get("segments")?,
        leased: row.try_get("leased")?,
        released: row.try_get("released")?,
        unused: row.try_get("unused")?,
    })
}

pub async fn run(options: Options, output: Output) -> Result<Exit> {
    let database = connect::connect_first(&options.database.url).await?;
    let rows = database.query(sql::VOLUME_STATUS, &[]).await?;
    let inline_bytes = database.query_one(sql::INLINE_USAGE, &[]).await?.try_get(0)?;
    let answer = Answer { volumes: rows.iter().map(volume).collect::<Result<_, _>>()?, inline_bytes };
    let mut lines =
        vec![table::headings(["volume", "state", "mounted", "segments", "leased", "released", "unused", "made in"])];
    for volume in &answer.volumes {
        let mounted = match (&volume.mounted, volume.is_current) {
            (None, _) => "never".to_owned(),
            (Some(time), true) => time.clone(),
            (Some(time), false) => format!("{time} (before a failover or restore)"),
        };
        let Volume { volume, state, segments, leased, released, unused, name, .. } = volume;
        let [segments, leased, released, unused] = [segments, leased, released, unused].map(i32::to_string);
        lines.push(vec![volume.to_string(), state.clone(), mounted, segments, leased, released, unused, name.clone()]);
    }
    output.text(table::table(&lines));
    output.text(format_args!("{inline_bytes} bytes on disk for small objects inside PostgreSQL\n"));
    output.answer(&answer);
    Ok(Exit::Fine)
}
