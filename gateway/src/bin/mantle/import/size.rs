//! Synthetic sizes for a listing without sizes: log-normal, roughly like file sizes (median 3 KB, mean 22 KB, one in a
//! thousand over 1.4 MB). A size depends only on the seed and the path, so a repeated import makes the same sizes.

use std::f64::consts::TAU;

const MEDIAN_BYTES: f64 = 3_000.0;
/// Standard deviation of the size's natural logarithm.
const LOG_DEVIATION: f64 = 2.0;
/// No synthetic size is larger, in bytes.
const SIZE_BYTES_MAX: f64 = 1_073_741_824.0;

/// FNV-1a, 64 bit: specified, so the sizes are the same in every build (std's hasher does not promise that).
#[derive(Clone, Copy)]
pub struct PathHash(u64);

impl PathHash {
    pub fn new(seed: u64) -> Self {
        Self(0xcbf2_9ce4_8422_2325 ^ mix(seed))
    }

    pub fn extend(self, part: &str) -> Self {
        Self(part.bytes().fold(self.0, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
    }

    /// The size that belongs to the path, in bytes.
    pub fn size(self) -> i64 {
        let first = mix(self.0);
        let second = mix(first);
        // Box and Muller's transform of two uniform numbers, the first in (0, 1].
        let normal = (-2.0 * (1.0 - unit(first)).ln()).sqrt() * (TAU * unit(second)).cos();
        (MEDIAN_BYTES * (LOG_DEVIATION * normal).exp()).min(SIZE_BYTES_MAX) as i64
    }
}

/// The step of SplitMix64.
fn mix(v: u64) -> u64 {
    let v = v.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let v = (v ^ (v >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let v = (v ^ (v >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    v ^ (v >> 31)
}

/// Uniform in [0, 1).
fn unit(v: u64) -> f64 {
    (v >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(seed: u64, path: &str) -> i64 {
        PathHash::new(seed).extend(path).size()
    }

    #[test]
    fn sizes_depend_on_seed_and_path_only() {
        assert_eq!(size(1, "usr/bin/ls"), PathHash::new(1).extend("usr/").extend("bin/ls").size());
        assert_ne!(size(1, "usr/bin/ls"), size(2, "usr/bin/ls"));
        assert_ne!(size(1, "usr/bin/ls"), size(1, "usr/bin/lt"));
    }

    #[test]
    fn sizes_spread_as_documented() {
        let mut sizes: Vec<i64> = (0..100_000).map(|n| size(7, &format!("path/{n}"))).collect();
        sizes.sort_unstable();
        assert!(sizes[0] >= 0);
        let (median, mean) = (sizes[50_000] as f64, sizes.iter().sum::<i64>() as f64 / sizes.len() as f64);
        assert!((0.95..1.05).contains(&(median / MEDIAN_BYTES)), "median {median}");
        assert!((0.8..1.25).contains(&(mean / 22_167.0)), "mean {mean}");
    }
}
