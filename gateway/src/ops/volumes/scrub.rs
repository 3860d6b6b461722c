//! Reads again from the disk, slowly, what rows name in the volume, and checks each byte: damage of an object that nobody reads is
//! found while a copy of its bytes may still exist. How far it has come is in a file beside the volume, so a restart goes on there.
//! It writes nothing to the volume and leases nothing. Puts and reads go on.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    convert::Infallible,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use mantle_types::Result;
use mantle_volumes::{Extent, Generation, Locator, Scrub, ScrubCursor, SegmentId, VolumeId};
use serde::{Deserialize, Serialize};
use tokio::{task::spawn_blocking, time::Instant};

use super::broken;
use crate::{data::volumes::Volumes, store::Store};

/// The file, in the volume's folder, that says how far this has come.
const STATE: &str = "background-scrub.json";
/// Most locators that are read at a time.
const PAGE_LOCATORS: usize = 5_000;
/// How often the file is written while extents are read, at most. What was read since is read again after a restart.
const SAVED: Duration = Duration::from_secs(1);
/// The time between two looks whether damaged extents are still named, and whether a scrub is due.
const LOOK: Duration = Duration::from_secs(60);
/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(10);
/// Of how many damaged extents the file has the names. More would say no more than that the disk fails.
const DAMAGED_MAX: usize = 10_000;

/// Gauge: Unix time.
const FINISHED: &str = "mantle_gateway_scrub_finished_seconds";
const BYTES: &str = "mantle_gateway_scrub_bytes_total";
/// Gauge of extents.
const DAMAGED: &str = "mantle_gateway_scrub_damaged";

/// What a restart needs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
struct State {
    /// The volume's number.
    volume: u32,
    /// A scrub has begun and not ended.
    is_under_way: bool,
    /// Segment and block of the extent that it has read last.
    after: Option<(u32, u32)>,
    /// When the last one ended, as Unix time in seconds.
    finished: Option<u64>,
    /// Damaged extents that a row names, with the locator in it.
    damaged: BTreeMap<String, String>,
}

impl State {
    /// How long until the next one, in seconds; 0: now.
    fn due_in(&self, interval_s: u64, now_s: u64) -> u64 {
        match self.finished {
            // The clock may have been set back.
            Some(finished) if !self.is_under_way && finished <= now_s => {
                finished.saturating_add(interval_s).saturating_sub(now_s)
            }
            _ => 0,
        }
    }
}

/// Reads the volume again for ever.
pub(super) struct Scrubber<'a> {
    store: &'a Store,
    volumes: &'a Volumes,
    volume: VolumeId,
    file: PathBuf,
    state: State,
    saved: Instant,
    problem: Option<String>,
}

impl<'a> Scrubber<'a> {
    /// Of the mounted volume.
    pub(super) fn new(store: &'a Store, volumes: &'a Volumes, volume: VolumeId) -> Self {
        let file = volumes.settings().folder.join(STATE);
        let state = State { volume: volume.0, ..State::default() };
        Self { store, volumes, volume, file, state, saved: Instant::now(), problem: None }
    }

    pub(super) async fn run(mut self) -> Infallible {
        self.read_state().await;
        loop {
            self.report();
            let pause = match self.step().await {
                Ok(pause) => {
                    self.problem = None;
                    pause
                }
                Err(error) => {
                    let text = error.to_string();
                    if self.problem.as_ref() != Some(&text) {
                        tracing::warn!(%error, "the volume cannot be scrubbed; trying again");
                        self.problem = Some(text);
                    }
                    RETRY
                }
            };
            self.report();
            tokio::time::sleep(pause).await;
        }
    }

    fn report(&self) {
        metrics::gauge!(FINISHED).set(self.state.finished.unwrap_or(0) as f64);
        metrics::gauge!(DAMAGED).set(self.state.damaged.len() as f64);
    }

    /// Reads the volume if that is due. Answers how long there is nothing to do.
    async fn step(&mut self) -> Result<Duration> {
        self.forget_deleted().await?;
        let interval_s = self.volumes.settings().scrub_interval_s;
        if interval_s == 0 {
            return Ok(LOOK);
        }
        let left = self.state.due_in(interval_s, now_s());
        if left > 0 {
            return Ok(LOOK.min(Duration::from_secs(left)));
        }
        self.scrub().await?;
        self.state = State { is_under_way: false, after: None, finished: Some(now_s()), ..self.state.clone() };
        self.save().await;
        tracing::info!(volume = %self.volume, damaged = self.state.damaged.len(), "the volume is scrubbed");
        Ok(Duration::ZERO)
    }

    /// Reads all that rows name, from where it was. The volume may grow meanwhile.
    async fn scrub(&mut self) -> Result<()> {
        self.state.is_under_way = true;
        let store = self.volumes.store().clone();
        let cursor = ScrubCursor { after: self.state.after };
        let mut scrub = Scrub::new(store, cursor, self.volumes.settings().scrub_bytes_per_second);
        let mut number = self.state.after.map_or(0, |(segment, _)| segment);
        while number < self.segments()? {
            let extents = self.named_in(SegmentId { volume: self.volume, number }).await?;
            self.forget_gone(number, &extents);
            for ((extent, generation), locator) in extents {
                if Some((number, extent.block)) <= scrub.cursor().after {
                    continue;
                }
                let findings = scrub.step([(extent, generation)]).await.map_err(|cause| broken(&cause))?;
                metrics::counter!(BYTES).increment(extent.length.into());
                self.state.damaged.remove(&extent.to_string());
                for finding in findings {
                    self.note(finding.extent, &locator, &finding.error).await?;
                }
                self.state.after = scrub.cursor().after;
                if self.saved.elapsed() >= SAVED {
                    self.report();
                    self.save().await;
                }
            }
            number += 1;
        }
        Ok(())
    }

    fn segments(&self) -> Result<u32> {
        Ok(self.volumes.store().volume(self.volume).map_err(|cause| broken(&cause))?.segments())
    }

    /// What rows name in a segment, in the order of the places, with the text that names it.
    async fn named_in(&self, segment: SegmentId) -> Result<BTreeMap<(Extent, Generation), String>> {
        let mut extents = BTreeMap::new();
        let mut after = String::new();
        loop {
            let page = self.store.named_locators(segment, &after, PAGE_LOCATORS).await?;
            let is_last = page.len() < PAGE_LOCATORS;
            for text in page {
                after.clone_from(&text);
                let Ok(locator) = text.parse::<Locator>() else {
                    tracing::error!(text, "a row names bytes in the volume by a malformed locator");
                    continue;
                };
                extents.extend(locator.extents().map(|extent| ((extent, locator.generation), text.clone())));
            }
            if is_last {
                return Ok(extents);
            }
        }
    }

    /// Forgets damage in a segment where no row names the extent any more.
    fn forget_gone(&mut self, segment: u32, named: &BTreeMap<(Extent, Generation), String>) {
        let begin = format!("{}.", SegmentId { volume: self.volume, number: segment });
        if self.state.damaged.keys().any(|place| place.starts_with(&begin)) {
            let places: HashSet<String> = named.keys().map(|(extent, _)| extent.to_string()).collect();
            self.state.damaged.retain(|place, _| !place.starts_with(&begin) || places.contains(place));
        }
    }

    /// Forgets damaged extents whose objects were deleted or overwritten.
    async fn forget_deleted(&mut self) -> Result<()> {
        if self.state.damaged.is_empty() {
            return Ok(());
        }
        let before = self.state.damaged.len();
        let locators: BTreeSet<String> = self.state.damaged.values().cloned().collect();
        for some in Vec::from_iter(locators).chunks(PAGE_LOCATORS) {
            let unused = self.store.unused_locators(some).await?;
            self.state.damaged.retain(|_, locator| !unused.contains(locator));
        }
        if self.state.damaged.len() < before {
            self.save().await;
        }
        Ok(())
    }

    /// Counts an extent whose bytes could not be read, if a row still names it. If not, it was deleted meanwhile.
    async fn note(&mut self, extent: Extent, locator: &str, cause: &mantle_volumes::Error) -> Result<()> {
        let is_named = self.store.unused_locators(&[locator.to_owned()]).await?.is_empty();
        if is_named {
            tracing::error!(%cause, locator, "a scrub found bytes of an object that are damaged");
            if self.state.damaged.len() < DAMAGED_MAX {
                self.state.damaged.insert(extent.to_string(), locator.to_owned());
            }
            self.report();
        }
        Ok(())
    }

    async fn read_state(&mut self) {
        let file = self.file.clone();
        let found = spawn_blocking(move || read(&file)).await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        match found {
            Ok(Some(state)) if state.volume == self.volume.0 => self.state = state,
            Ok(_) => {}
            Err(cause) => tracing::warn!(%cause, "how far the scrub had come cannot be read; it begins anew"),
        }
    }

    /// A failure costs only that a restart begins further back.
    async fn save(&mut self) {
        self.saved = Instant::now();
        let (file, state) = (self.file.clone(), self.state.clone());
        let written = spawn_blocking(move || write(&file, &state)).await;
        if let Err(cause) = written.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            tracing::warn!(%cause, "how far the scrub has come cannot be written");
        }
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `None`: there is no such file.
fn read(file: &Path) -> io::Result<Option<State>> {
    match fs::read(file) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(cause),
    }
}

/// The file is replaced, so it is whole whenever the process ends.
fn write(file: &Path, state: &State) -> io::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, serde_json::to_vec(state)?)?;
    fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_is_due_after_the_interval() {
        let state = State { finished: Some(1000), ..State::default() };
        assert_eq!([1000, 1060, 1100, 2000].map(|now| state.due_in(100, now)), [100, 40, 0, 0]);
        assert_eq!(state.due_in(100, 999), 0, "the clock was set back");
        assert_eq!(state.due_in(u64::MAX, 1001), u64::MAX - 1001);
        assert_eq!(State { is_under_way: true, ..state }.due_in(100, 1000), 0);
        assert_eq!(State::default().due_in(100, 1000), 0, "the first one");
    }

    #[test]
    fn what_a_restart_needs_is_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(STATE);
        assert_eq!(read(&file).unwrap(), None);
        let damaged = BTreeMap::from([("3.12.20+8192".to_owned(), "v1:3.12.7/1.1030/20+8192".to_owned())]);
        let state = State { volume: 3, is_under_way: true, after: Some((12, 20)), finished: Some(7), damaged };
        write(&file, &state).unwrap();
        assert_eq!(read(&file).unwrap(), Some(state));
        fs::write(&file, b"{").unwrap();
        assert!(read(&file).is_err());
    }
}
