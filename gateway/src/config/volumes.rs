//! The section `[volumes]`.

use std::path::PathBuf;

use anyhow::ensure;
use mantle_types::limits::{KEY_BYTES_MAX, REUSE_DELAY_MAX_MS, SEGMENTS_PER_CALL_MAX};
use mantle_volumes::Geometry;
use serde::Deserialize;

/// The volume of a gateway. Its block and segment sizes are chosen when it is created.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Volumes {
    /// Folder in which the gateway creates its volume. No other gateway may use it for its own. A path of at most 1,024 bytes.
    pub folder: PathBuf,
    /// The block device of the volume, instead of a file in the folder; by a name that stays the same, such as `/dev/disk/by-id/…`.
    /// `mantle data format` has to have prepared it. The folder keeps what is needed beside the volume.
    #[serde(default)]
    pub device: Option<PathBuf>,
    /// Folders of other gateways' volumes, which this one reads.
    #[serde(default)]
    pub read_folders: Vec<PathBuf>,
    /// Devices of other gateways' volumes, which this one reads. These gateways have to run on the same machine: another one's cache
    /// would not learn of what they write.
    #[serde(default)]
    pub read_devices: Vec<PathBuf>,
    /// Bytes of a block of a new volume, a power of two from 512 to 65,536.
    #[serde(default = "default_block_bytes")]
    pub block_bytes: u32,
    /// Bytes of a segment of a new volume. The gateway takes segments into use, and reads their rows after a failover, one
    /// at a time.
    #[serde(default = "default_segment_bytes")]
    pub segment_bytes: u64,
    /// Segments of a new volume, and of each growth, from 1 to 1,000. Their space is reserved, and each is filled with zeros once.
    #[serde(default = "default_growth_segments")]
    pub growth_segments: u32,
    /// Most bytes of the volume's segments; 0: as many as the file system has.
    #[serde(default)]
    pub bytes_max: u64,
    /// The volume grows when this share of its leased segments is used, in percent.
    #[serde(default = "default_grow_percent")]
    pub grow_percent: u8,
    /// How long the blocks of deleted objects are not used again. If PostgreSQL is restored to a time within this delay, all
    /// bytes are still there. At most 604,800,000 (7 days).
    #[serde(default)]
    pub reuse_delay_ms: u64,
    /// How long a read keeps the blocks of an object that is deleted meanwhile. A longer read may end early.
    #[serde(default = "default_read_ms_max")]
    pub read_ms_max: u64,
    /// How long after an unknown outcome of a put the gateway asks PostgreSQL whether a row names its blocks.
    #[serde(default = "default_doubt_ms")]
    pub doubt_ms: u64,
    /// How often all bytes in the volume are read again from the disk and checked, in seconds; 0: never. By default every 7 days.
    #[serde(default = "default_scrub_interval_s")]
    pub scrub_interval_s: u64,
    /// Most bytes that this check reads a second. If a volume has more than it can read in the interval, the next check begins
    /// when one ends.
    #[serde(default = "default_scrub_bytes_per_second")]
    pub scrub_bytes_per_second: u64,
}

fn default_block_bytes() -> u32 {
    mantle_volumes::BLOCK_BYTES_DEFAULT
}

fn default_segment_bytes() -> u64 {
    mantle_volumes::SEGMENT_BYTES_DEFAULT
}

fn default_growth_segments() -> u32 {
    4
}

fn default_grow_percent() -> u8 {
    85
}

fn default_read_ms_max() -> u64 {
    900_000
}

fn default_doubt_ms() -> u64 {
    60_000
}

fn default_scrub_interval_s() -> u64 {
    7 * 86_400
}

fn default_scrub_bytes_per_second() -> u64 {
    20 << 20
}

impl Volumes {
    /// `None` if there can be no such blocks and segments.
    pub(crate) fn geometry(&self) -> Option<Geometry> {
        Geometry::new(self.block_bytes, self.segment_bytes)
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.geometry().is_some(),
            "block_bytes is no power of two from 512 to 65,536, or segment_bytes is no multiple of it"
        );
        // PostgreSQL refuses what is beyond these bounds, with each call: no segment would be leased, no block freed.
        ensure!(
            (1..=SEGMENTS_PER_CALL_MAX).contains(&(self.growth_segments as usize)),
            "growth_segments must be between 1 and {SEGMENTS_PER_CALL_MAX}"
        );
        ensure!(
            self.reuse_delay_ms <= REUSE_DELAY_MAX_MS,
            "reuse_delay_ms must be at most {REUSE_DELAY_MAX_MS} (7 days)"
        );
        ensure!(
            (1..=KEY_BYTES_MAX).contains(&self.folder.display().to_string().len()),
            "folder must be a path of 1 to {KEY_BYTES_MAX} bytes"
        );
        ensure!(
            self.bytes_max == 0 || self.bytes_max >= self.segment_bytes,
            "bytes_max must be 0, or have room for a segment"
        );
        ensure!((1..=99).contains(&self.grow_percent), "grow_percent must be between 1 and 99");
        ensure!(
            self.scrub_bytes_per_second > 0,
            "scrub_bytes_per_second must be at least 1; scrub_interval_s = 0 turns it off"
        );
        ensure!(!self.read_folders.contains(&self.folder), "read_folders has the volume's own folder");
        let own = |device| self.read_devices.contains(device);
        ensure!(!self.device.as_ref().is_some_and(own), "read_devices has the volume's own device");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(settings: &str) -> Option<String> {
        refusal_of(&format!("folder = \"a\"\n{settings}"))
    }

    fn refusal_of(section: &str) -> Option<String> {
        let volumes: Volumes = toml::from_str(section).map_err(|e| e.to_string()).unwrap();
        volumes.check().err().map(|error| error.to_string())
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        assert_eq!(refusal(""), None);
        assert_eq!(refusal("block_bytes = 1024\nsegment_bytes = 16777216\nbytes_max = 16777216"), None);
        for (settings, told) in [
            ("block_bytes = 1000", "block_bytes"),
            ("segment_bytes = 1000000", "segment_bytes"),
            ("growth_segments = 0", "growth_segments"),
            ("bytes_max = 1", "bytes_max"),
            ("grow_percent = 100", "grow_percent"),
            ("scrub_bytes_per_second = 0", "scrub_bytes_per_second"),
            ("read_folders = [\"a\"]", "read_folders"),
            ("device = \"d\"\nread_devices = [\"d\"]", "read_devices"),
        ] {
            let error = refusal(settings).unwrap_or_else(|| panic!("{settings} was accepted"));
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn what_postgresql_would_refuse_is_refused_at_the_start() {
        let delay = |ms: u64| refusal(&format!("reuse_delay_ms = {ms}"));
        assert_eq!(delay(REUSE_DELAY_MAX_MS), None);
        assert!(delay(REUSE_DELAY_MAX_MS + 1).unwrap().contains("reuse_delay_ms must be at most 604800000 (7 days)"));
        let growth = |segments: usize| refusal(&format!("growth_segments = {segments}"));
        assert_eq!(growth(SEGMENTS_PER_CALL_MAX), None);
        assert!(growth(SEGMENTS_PER_CALL_MAX + 1).unwrap().contains("growth_segments must be between 1 and 1000"));
        let folder = |bytes: usize| refusal_of(&format!("folder = \"{}\"", "a".repeat(bytes)));
        assert_eq!(folder(KEY_BYTES_MAX), None);
        assert!(folder(KEY_BYTES_MAX + 1).is_some() && folder(0).is_some());
    }
}
