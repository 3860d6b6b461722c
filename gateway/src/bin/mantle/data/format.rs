//! `mantle data format`: marks a block device, so that a gateway may make its volume there. It refuses a device that is in use, and
//! one that holds anything that it or `blkid` knows.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Output as Told},
};

use anyhow::{Context, Result};
use mantle_volumes::{DeviceClaim, MountError, OnDevice, RealFile, VolumeFile, mark_device, on_device};
use serde::Serialize;

use crate::{
    exit::{Exit, failure},
    output::Output,
};

/// What `blkid --probe` ends with if it finds nothing.
const NOTHING: i32 = 2;

#[derive(clap::Args)]
pub struct Options {
    /// The block device, by a name that stays the same: `/dev/disk/by-id/…`
    device: PathBuf,
    /// Do it also if the device holds something, which is lost then. A device that is in use is refused anyway
    #[arg(long)]
    force: bool,
}

/// The answer of `mantle data format --json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Formatted {
    /// The device.
    device: String,
    /// How many bytes it has.
    bytes: u64,
}

pub fn run(options: &Options, output: Output) -> Result<Exit> {
    let Options { device, force } = options;
    let name = device.display();
    let refused = |cause: MountError| match cause {
        MountError::InUse => failure(Exit::Usage, format!("{name} is in use: it is mounted, or a process has it open")),
        MountError::Invalid(why) => failure(Exit::Usage, format!("{name}: {why}")),
        MountError::Io(cause) => failure(Exit::Usage, format!("{name}: {cause}")),
        cause => failure(Exit::Other, format!("{name}: {cause}")),
    };
    let _claim = DeviceClaim::take(device).map_err(refused)?;
    let file = RealFile::open(device).map_err(refused)?;
    if !force && let Some(found) = found_on(&file, device)? {
        return Err(failure(Exit::Usage, format!("{name} holds {found}; with --force it is lost")));
    }
    if *force {
        // Also what lies behind the head, such as the second copy of a partition table.
        told(&mut program("wipefs", &["--all", "--force"], device)).and_then(|told| {
            let text = String::from_utf8_lossy(&told.stderr).trim().to_owned();
            if told.status.success() { Ok(()) } else { Err(failure(Exit::Other, format!("wipefs: {text}"))) }
        })?;
    }
    mark_device(&file).with_context(|| name.to_string())?;
    let bytes = file.bytes().with_context(|| name.to_string())?;
    output.text(format_args!("{name} with {bytes} bytes is ready: name it in a gateway's settings (volumes.device)\n"));
    output.answer(&Formatted { device: name.to_string(), bytes });
    Ok(Exit::Fine)
}

/// What a device holds; `None`: nothing that is known, or the mark already.
fn found_on(file: &RealFile, device: &Path) -> Result<Option<String>> {
    match on_device(file) {
        Ok(OnDevice::Volume(found)) => {
            return Ok(Some(format!("volume {} of cluster {}", found.volume, found.cluster)));
        }
        Ok(OnDevice::Marked) => return Ok(None),
        Ok(OnDevice::Other) => {}
        Err(MountError::Version(version)) => return Ok(Some(format!("a volume of the unknown format {version}"))),
        Err(cause) => return Err(cause).with_context(|| device.display().to_string()),
    }
    let told = told(&mut program("blkid", &["--probe", "--output", "export"], device))?;
    if told.status.code() == Some(NOTHING) {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&told.stdout);
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let found = value("TYPE=").or_else(|| value("PTTYPE=").map(|kind| format!("a partition table ({kind})")));
    Ok(Some(found.unwrap_or_else(|| "something that blkid cannot name".into())))
}

/// A program of util-linux, which may be where only administrators look for programs.
fn program(name: &str, arguments: &[&str], device: &Path) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command.args(arguments).arg(device).env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
    command
}

fn told(command: &mut Command) -> Result<Told> {
    command.output().map_err(|cause| {
        let name = command.get_program().to_string_lossy().into_owned();
        match cause.kind() {
            ErrorKind::NotFound => failure(
                Exit::Other,
                format!("{name} is not there (package util-linux), so it is not known what the device holds"),
            ),
            _ => failure(Exit::Other, format!("{name}: {cause}")),
        }
    })
}
