//! The section `[volumes]`.

use std::path::PathBuf;

use anyhow::ensure;
use mantle_volumes::Geometry;
use serde::Deserialize;

/// The volume of a gateway. Its block and segment sizes are chosen when it is created.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Volumes {
    /// Folder in which the gateway creates its volume. No other gateway may use it for its own.
    pub folder: PathBuf,
    /// Folders of other gateways' volumes, which this one reads.
    #[serde(default)]
    pub read_folders: Vec<PathBuf>,
    /// Bytes of a block of a new volume, a power of two from 512 to 65,536.
    #[serde(default = "default_block_bytes")]
    pub block_bytes: u32,
    /// Bytes of a segment of a new volume. The gateway takes segments into use, and reads their rows after a failover, one
    /// at a time.
    #[serde(default = "default_segment_bytes")]
    pub segment_bytes: u64,
    /// Segments of a new volume, and of each growth. Their space is reserved, and each is filled with zeros once.
    #[serde(default = "default_growth_segments")]
    pub growth_segments: u32,
    /// Most bytes of the volume's segments; 0: as many as the file system has.
    #[serde(default)]
    pub bytes_max: u64,
    /// The volume grows when this share of its leased segments is used, in percent.
    #[serde(default = "default_grow_percent")]
    pub grow_percent: u8,
    /// How long the blocks of deleted objects are not used again. If PostgreSQL is restored to a time within this delay, all
    /// bytes are still there.
    #[serde(default)]
    pub reuse_delay_ms: u64,
    /// How long a read keeps the blocks of an object that is deleted meanwhile. A longer read may end early.
    #[serde(default = "default_read_ms_max")]
    pub read_ms_max: u64,
    /// How long after an unknown outcome of a put the gateway asks PostgreSQL whether a row names its blocks.
    #[serde(default = "default_doubt_ms")]
    pub doubt_ms: u64,
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
        ensure!(self.growth_segments > 0, "growth_segments must be at least 1");
        ensure!(
            self.bytes_max == 0 || self.bytes_max >= self.segment_bytes,
            "bytes_max must be 0, or have room for a segment"
        );
        ensure!((1..=99).contains(&self.grow_percent), "grow_percent must be between 1 and 99");
        ensure!(!self.read_folders.contains(&self.folder), "read_folders has the volume's own folder");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(settings: &str) -> Option<String> {
        let volumes: Volumes =
            toml::from_str(&format!("folder = \"a\"\n{settings}")).map_err(|e| e.to_string()).unwrap();
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
            ("read_folders = [\"a\"]", "read_folders"),
        ] {
            let error = refusal(settings).unwrap_or_else(|| panic!("{settings} was accepted"));
            assert!(error.contains(told), "{error}");
        }
    }
}
