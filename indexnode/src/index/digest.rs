//! The digest of a set of directory records: the sum of their hashes. So neither their order nor the seed of a table matters.
//! The hash function is defined here, not taken from a library, so that replicas of different builds agree.
//!
//! Source: the finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).

use super::record::Record;

/// Spreads every bit of a number over all 64 bits.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn add(state: u64, word: u64) -> u64 {
    mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ word)
}

/// What one record adds to the digest.
pub(super) fn record_hash(record: &Record<'_>) -> u64 {
    let p = &record.permission;
    let head =
        [record.pid.0, record.id.0, record.version, u64::from(p.owner) << 32 | u64::from(p.group), u64::from(p.mode)];
    let state = head.into_iter().chain([record.name.len() as u64]).fold(0, add);
    record.name.as_bytes().chunks(8).fold(state, |state, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        add(state, u64::from_le_bytes(word))
    })
}
