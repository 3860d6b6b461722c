//! `mantle data scrub`: reads from the disk what rows name in a folder's volumes or on a device, and checks each byte. It reads beside the gateway
//! that has the volume, without its lock. What was deleted meanwhile is no damage, so PostgreSQL is asked again about each finding.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use mantle_volumes::{
    Extent, Generation, Locator, OnDevice, Options as StoreOptions, PREFIX, RealFile, Scrub, ScrubCursor, Store,
    Volume, VolumeFile, VolumeId, file_of, on_device, volumes_in,
};
use serde::{Deserialize, Serialize};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::{
    connect::{self, DatabaseOptions},
    exit::{Exit, failure},
    output::Output,
    sql,
};

/// Name of the file that says how far the last run came.
const STATE: &str = "scrub.json";

/// The database role has to own the tables of the extension, or be a superuser.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    database: DatabaseOptions,
    /// The folder of the volumes
    #[arg(long, required_unless_present = "device", conflicts_with = "device")]
    folder: Option<PathBuf>,
    /// The block device of a volume, instead of a folder
    #[arg(long, requires = "state")]
    device: Option<PathBuf>,
    /// A folder for the file that says how far this came; the folder of the volumes unless given
    #[arg(long)]
    state: Option<PathBuf>,
    /// Bytes a second, at most
    #[arg(long, default_value_t = 20 << 20, value_parser = clap::value_parser!(u64).range(1..))]
    bytes_per_second: u64,
}

impl Options {
    /// The volumes in the order of their numbers, each with its file or device, and the folder or device that has them.
    fn volumes(&self) -> Result<(Vec<(VolumeId, PathBuf)>, &PathBuf)> {
        let none = |given: String| failure(Exit::Usage, format!("{given}: there is no volume"));
        match (&self.folder, &self.device) {
            (Some(folder), _) => {
                let named = || format!("--folder {}", folder.display());
                let found = volumes_in(folder).with_context(named)?;
                let volumes: Vec<_> = found.into_iter().map(|volume| (volume, file_of(folder, volume))).collect();
                if volumes.is_empty() { Err(none(named())) } else { Ok((volumes, folder)) }
            }
            (None, Some(device)) => {
                let named = || format!("--device {}", device.display());
                let found = RealFile::open_to_read(device).and_then(|file| on_device(&file)).with_context(named)?;
                let OnDevice::Volume(superblock) = found else { return Err(none(named())) };
                Ok((vec![(superblock.volume, device.clone())], device))
            }
            (None, None) => Err(none("--folder, --device".into())),
        }
    }
}

/// The answer of `mantle data scrub --json`.
#[derive(Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Scrubbed {
    /// Extents that were read.
    extents: u64,
    /// Bytes of data in the extents.
    bytes: u64,
    /// Bytes that a row names and that could not be read.
    damaged: Vec<Damaged>,
}

/// Bytes that are lost or damaged.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Damaged {
    /// The locator of these bytes.
    locator: String,
    /// What was found instead of them.
    error: String,
    /// The objects whose rows have the locator, at most 20: ids of namespace and directory, and the name. Other objects may use
    /// the bytes by the parts of an upload.
    objects: Vec<String>,
}

/// Where the next run goes on.
#[derive(Clone, Copy, Default, Deserialize, Serialize)]
struct State {
    volume: u32,
    /// Segment and block.
    after: Option<(u32, u32)>,
}

pub async fn run(options: Options, output: Output) -> Result<Exit> {
    let database = connect::connect_first(&options.database.url).await?;
    let sees_all: bool = database.query_one(sql::SEES_ALL, &[]).await?.get(0);
    if !sees_all {
        return Err(failure(Exit::Permission, "the role has to own the tables of the extension"));
    }
    let cluster: Uuid = database.query_one(sql::CLUSTER_ID, &[]).await?.get(0);
    let (volumes, beside) = options.volumes()?;
    let file = options.state.as_ref().unwrap_or(beside).join(STATE);
    let begin = read_state(&file)?;
    let mut scrubbed = Scrubbed::default();
    for (volume, path) in volumes.into_iter().filter(|(volume, _)| volume.0 >= begin.volume) {
        let after = if volume.0 == begin.volume { begin.after } else { None };
        let walk = Walk { database: &database, file: &file, volume, path, output };
        walk.run(cluster, options.bytes_per_second, ScrubCursor { after }, &mut scrubbed).await?;
    }
    fs::remove_file(&file)
        .or_else(|error| if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
    output.text(format_args!(
        "{} extents with {} bytes were read, {} are damaged\n",
        scrubbed.extents,
        scrubbed.bytes,
        scrubbed.damaged.len()
    ));
    output.answer(&scrubbed);
    Ok(if scrubbed.damaged.is_empty() { Exit::Fine } else { Exit::Fault })
}

fn read_state(file: &Path) -> Result<State> {
    match fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| format!("{} is not of a scrub", file.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(State::default()),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

/// A walk over one volume.
struct Walk<'a> {
    database: &'a Client,
    file: &'a Path,
    volume: VolumeId,
    path: PathBuf,
    output: Output,
}

impl Walk<'_> {
    async fn run(
        &self,
        cluster: Uuid,
        bytes_per_second: u64,
        cursor: ScrubCursor,
        scrubbed: &mut Scrubbed,
    ) -> Result<()> {
        let file: Arc<dyn VolumeFile> = Arc::new(RealFile::open_to_read(&self.path)?);
        let volume = Volume::view(file, cluster, self.volume).with_context(|| self.path.display().to_string())?;
        let segments = volume.segments();
        let store = Store::new(StoreOptions::default());
        store.add(volume)?;
        let first = cursor.after.map_or(0, |(segment, _)| segment);
        let mut scrub = Scrub::new(store, cursor, bytes_per_second);
        for segment in first..segments {
            let extents = self.extents(segment).await?;
            scrubbed.extents += extents.len() as u64;
            scrubbed.bytes += extents.keys().map(|(extent, _)| u64::from(extent.length)).sum::<u64>();
            for finding in scrub.step(extents.keys().copied()).await? {
                let locator = &extents[&(finding.extent, finding.generation)];
                self.note(locator, &finding.error, scrubbed).await?;
            }
            self.write_state(scrub.cursor())?;
        }
        Ok(())
    }

    /// What rows name in a segment, in the order of the places, with the text that names it.
    async fn extents(&self, segment: u32) -> Result<BTreeMap<(Extent, Generation), String>> {
        let begin = format!("{PREFIX}{}.{segment}", self.volume);
        // The next byte after a dot is a slash.
        let rows = self.database.query(sql::LOCATORS_BETWEEN, &[&format!("{begin}."), &format!("{begin}/")]).await?;
        let mut extents = BTreeMap::new();
        for row in rows {
            let text: String = row.get(0);
            let locator: Locator = text.parse().with_context(|| format!("`{text}`"))?;
            extents.extend(locator.extents().map(|extent| ((extent, locator.generation), text.clone())));
        }
        Ok(extents)
    }

    async fn note(&self, locator: &str, error: &mantle_volumes::Error, scrubbed: &mut Scrubbed) -> Result<()> {
        let is_named: bool = self.database.query_one(sql::IS_NAMED, &[&locator]).await?.get(0);
        if !is_named {
            return Ok(());
        }
        let rows = self.database.query(sql::OBJECTS_OF_LOCATOR, &[&locator]).await?;
        let objects = rows.iter().map(|row| row.get(0)).collect();
        let damaged = Damaged { locator: locator.to_owned(), error: error.to_string(), objects };
        self.output.text(format_args!("{}: {}: {}\n", damaged.locator, damaged.error, damaged.objects.join(", ")));
        scrubbed.damaged.push(damaged);
        Ok(())
    }

    fn write_state(&self, cursor: ScrubCursor) -> Result<()> {
        let state = State { volume: self.volume.0, after: cursor.after };
        let new = self.file.with_extension("new");
        fs::write(&new, serde_json::to_vec(&state)?).with_context(|| new.display().to_string())?;
        fs::rename(&new, self.file).with_context(|| self.file.display().to_string())
    }
}
