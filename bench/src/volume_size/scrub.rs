//! The check of all bytes (`mantle data scrub`), as fast as it goes. Where that takes too long it is ended, and its time for the whole
//! volume follows from how far it came.

use std::{
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, ensure};
use mantle_volumes::SegmentId;
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use super::{Bench, MIB, objects::OBJECT_BYTES, seconds};
use crate::report::{Report, count, short};

/// More than any disk reads: the pace is no bound.
const BYTES_PER_SECOND: u64 = 1 << 40;
/// The pace of `mantle data scrub` unless it is told another.
const DEFAULT_BYTES_PER_SECOND: f64 = 20.0 * MIB;
/// Where it keeps how far it came.
const STATE: &str = "scrub.json";

pub async fn run(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    report.heading("Check of all bytes");
    let state = tempfile::tempdir()?;
    let mut command = Command::new(&bench.programs.mantle);
    command.args(["data", "scrub", "--json", "--bytes-per-second", &BYTES_PER_SECOND.to_string()]);
    command.arg("--folder").arg(&bench.options.folder).arg("--state").arg(state.path());
    // In the environment: other users see arguments.
    command.env("DATABASE_URL", &bench.options.stack.admin);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
    let (began, bound) = (SystemTime::now(), Duration::from_secs(bench.options.scrub_seconds));
    let ended = timeout(bound, command.spawn().context("mantle")?.wait_with_output()).await;
    let (read, until, how) = match ended {
        Ok(done) => {
            let done = done?;
            ensure!(done.status.success(), "mantle data scrub ended with {}", done.status);
            let answer: Value = serde_json::from_slice(&done.stdout)?;
            ensure!(answer["damaged"] == Value::Array(Vec::new()), "damaged: {}", answer["damaged"]);
            let read = answer["extents"].as_u64().context("no extents")? as f64;
            (read, SystemTime::now(), "These are all of them, and none is damaged.")
        }
        Err(_) => match read_until_now(bench, &state.path().join(STATE)).await {
            Ok((read, until)) => (read, until, "Then it was ended, before it could tell what it had found."),
            Err(why) => {
                report.paragraph(&format!("Not measured: {why:#}. It was ended after {} s.", bound.as_secs()));
                return Ok(());
            }
        },
    };
    let elapsed = until.duration_since(began)?;
    let (rate, all) = (read / elapsed.as_secs_f64(), bench.options.objects as f64);
    report.paragraph(&format!(
        "`mantle data scrub` reads the objects from the disk, not from the kernel's cache, one after the other. Without its pace it read {} \
         objects in {} s, {} a second. {how} At this rate the objects of the load take {} minutes; at the default pace of 20 MiB a second \
         they take at least {} minutes.",
        count(read as u64),
        seconds(elapsed),
        count(rate as u64),
        short(all / rate / 60.0),
        short(all * OBJECT_BYTES as f64 / DEFAULT_BYTES_PER_SECOND / 60.0),
    ));
    Ok(())
}

/// Objects of the segments that were read to their ends, and when the last one was.
async fn read_until_now(bench: &Bench<'_>, state: &Path) -> Result<(f64, SystemTime)> {
    let text = fs::read(state).context("no segment was read to its end")?;
    let read: Value = serde_json::from_slice(&text)?;
    let last = read["after"][0].as_u64().context("scrub.json names no segment")?;
    let until = fs::metadata(state)?.modified()?;
    let volume = bench.admin.only_volume().await?.volume;
    let mut objects = 0;
    for number in 0..=u32::try_from(last)? {
        objects += bench.admin.objects_in(SegmentId { volume, number }).await?;
    }
    Ok((objects as f64, until))
}
