//! The volume of a gateway: what objects take in it, its memory, and how long the gateway takes to start. A gateway derives the
//! free blocks from the rows, so both memory and time depend on the objects.

use mantle_volumes::{EXTENT_BYTES_MAX, Geometry, blocks_for};
use serde::Serialize;

use super::figures;

/// Objects in the volume of one gateway, all alike.
pub struct Objects {
    pub count: u64,
    /// Bytes of each.
    pub bytes: u64,
    pub geometry: Geometry,
}

/// The volume of one gateway, if the gateways share the objects evenly; zeros without `--object-bytes`.
#[derive(Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Volume {
    /// Bytes of the blocks that its objects take.
    pub used: u64,
    /// Bytes of its file, which grows before it is full (`volumes.grow_percent`, `volumes.growth_segments`).
    pub file: u64,
    /// Memory for its bitmaps, in bytes; part of `memory.gateway`.
    pub bitmaps: u64,
    /// Memory for the locators of a segment, which the gateway reads when it starts, in bytes; part of `memory.gateway`.
    pub locators: u64,
    /// Milliseconds from the mount of the volume until its gateway takes a put: one segment's locators are read.
    pub first_put_ms: u64,
    /// Milliseconds from the mount of the volume until all its segments are in use: all locators are read.
    pub all_segments_ms: u64,
}

impl Objects {
    /// Blocks of one object.
    fn blocks(&self) -> u64 {
        let of = |bytes: u64| u64::from(blocks_for(self.geometry, bytes as u32));
        let (extents, rest) = (self.bytes / u64::from(EXTENT_BYTES_MAX), self.bytes % u64::from(EXTENT_BYTES_MAX));
        extents * of(EXTENT_BYTES_MAX.into()) + if rest > 0 { of(rest) } else { 0 }
    }

    pub fn volume(&self) -> Volume {
        if self.bytes == 0 {
            return Volume::default();
        }
        let (blocks, segment_blocks) = (self.blocks(), u64::from(self.geometry.segment_blocks()));
        let used = self.count.saturating_mul(blocks).saturating_mul(self.geometry.block_bytes().into());
        let full_segments = used as f64 / self.geometry.segment_bytes() as f64;
        let steps = full_segments / figures::VOLUME_GROW_SHARE / figures::VOLUME_GROWTH_SEGMENTS;
        let segments = (steps.ceil().max(1.0) * figures::VOLUME_GROWTH_SEGMENTS) as u64;
        let in_a_segment = (segment_blocks / blocks).max(1).min(self.count) as f64;
        let ms = |locators: f64| (locators / figures::LOCATORS_PER_SECOND * 1e3) as u64;
        Volume {
            used,
            file: segments.saturating_mul(self.geometry.segment_bytes()),
            bitmaps: segments.saturating_mul(segment_blocks.div_ceil(8)),
            locators: (in_a_segment * figures::LOCATOR_BYTES) as u64,
            first_put_ms: ms(in_a_segment),
            all_segments_ms: ms(self.count as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use mantle_volumes::SEGMENT_BYTES_DEFAULT;

    use super::*;

    fn volume(count: u64, bytes: u64, block_bytes: u32) -> Volume {
        let geometry = Geometry::new(block_bytes, SEGMENT_BYTES_DEFAULT).unwrap();
        Objects { count, bytes, geometry }.volume()
    }

    /// The table of docs/formats.md.
    #[test]
    fn objects_take_whole_blocks() {
        for (bytes, of_1_kib, of_4_kib) in
            [(1 << 10, 2_048, 4_096), (4 << 10, 5_120, 8_192), (8 << 10, 9_216, 12_288), (64 << 10, 66_560, 69_632)]
        {
            assert_eq!(volume(7, bytes, 1024).used, 7 * of_1_kib);
            assert_eq!(volume(7, bytes, 4096).used, 7 * of_4_kib);
        }
        let large = u64::from(EXTENT_BYTES_MAX);
        assert_eq!(volume(1, 2 * large + 1, 4096).used, 2 * volume(1, large, 4096).used + 4096);
    }

    #[test]
    fn ten_million_small_objects() {
        let Volume { used, file, bitmaps, .. } = volume(10_000_000, 1 << 10, 4096);
        assert_eq!(used, 40_960_000_000);
        // 45 GiB: steps of 1 GiB, of which 85 % may be used.
        assert_eq!((file, bitmaps), (45 << 30, 45 << 15));
        assert_eq!(volume(10_000_000, 0, 4096).file, 0);
    }
}
