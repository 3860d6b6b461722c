//! The listing: its keys in S3's order, and the choices of keys and directories that measurements need.

use std::{collections::HashMap, path::Path};

use anyhow::{Context, Result, bail};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// The keys of a listing, kept in one string.
pub struct Input {
    text: String,
    /// Start and end of each key, sorted by the key's bytes: S3's order.
    keys: Vec<(u32, u32)>,
}

impl Input {
    /// Reads a listing (of less than 4 GiB). Lines that are not UTF-8 are left out, sizes ignored.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn parse(text: String) -> Result<Self> {
        u32::try_from(text.len()).context("the listing is over 4 GiB")?;
        let mut keys = Vec::new();
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let key = line.trim_end_matches('\n').split('\t').next().unwrap_or_default();
            if !key.is_empty() && !key.contains(char::REPLACEMENT_CHARACTER) {
                keys.push((start, start + key.len() as u32));
            }
            start += line.len() as u32;
        }
        let bytes = text.as_bytes();
        keys.sort_unstable_by_key(|(start, end)| &bytes[*start as usize..*end as usize]);
        keys.dedup_by_key(|(start, end)| &bytes[*start as usize..*end as usize]);
        if keys.len() < 2 {
            bail!("the listing has no keys");
        }
        Ok(Self { text, keys })
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// The key at a position in S3's order.
    pub fn key(&self, at: usize) -> &str {
        let (start, end) = self.keys[at];
        &self.text[start as usize..end as usize]
    }

    fn directory(&self, at: usize) -> &str {
        self.key(at).rsplit_once('/').map_or("", |(directory, _)| directory)
    }

    /// Number of directories that contain the keys of a range.
    pub fn directories_of(&self, range: std::ops::Range<usize>) -> usize {
        let mut directories: Vec<&str> = range.map(|at| self.directory(at)).collect();
        directories.sort_unstable();
        directories.dedup();
        directories.len()
    }

    /// `count` random directories by `seed`; a directory's probability is its share of the keys.
    pub fn some_directories(&self, count: usize, seed: u64) -> Vec<Vec<String>> {
        let mut random = StdRng::seed_from_u64(seed);
        (0..count)
            .map(|_| self.directory(random.random_range(0..self.len())))
            .map(|directory| directory.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect())
            .collect()
    }

    /// The directory at `depth` with the most directories below it, and their number. Paths that need percent-encoding
    /// are left out.
    pub fn largest_directory(&self, depth: usize) -> Option<(String, usize)> {
        let mut below: HashMap<&str, usize> = HashMap::new();
        let mut previous = "";
        for at in 0..self.len() {
            let directory = self.directory(at);
            if directory == previous {
                continue;
            }
            previous = directory;
            if let Some((end, _)) = directory.match_indices('/').nth(depth - 1) {
                *below.entry(&directory[..end]).or_default() += 1;
            }
        }
        let plain = |path: &str| path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-_.".contains(&b));
        let best = below.into_iter().filter(|(path, _)| plain(path)).max_by_key(|(path, count)| (*count, *path))?;
        Some((best.0.to_owned(), best.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_byte_order_once_and_without_sizes() {
        let input = Input::parse("b/x\na-b/y\t7\na/z\na/z\n\nü\n".into()).unwrap();
        let keys: Vec<_> = (0..input.len()).map(|at| input.key(at)).collect();
        assert_eq!(keys, ["a-b/y", "a/z", "b/x", "ü"]);
        assert_eq!(input.directories_of(0..4), 4);
    }

    #[test]
    fn the_largest_directory_is_found_by_what_is_below_it() {
        let input = Input::parse("a/b/1/f\na/b/2/f\na/c/1/f\na/b/1/g\nd/ä/1/f\nd/ä/2/f\nd/ä/3/f\n".into()).unwrap();
        assert_eq!(input.largest_directory(2), Some(("a/b".into(), 2)));
        assert_eq!(input.largest_directory(9), None);
    }
}
