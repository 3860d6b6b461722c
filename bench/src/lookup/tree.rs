//! A synthetic namespace: a complete tree of ten levels, of any size. Its paths are computed, so they need no memory.

use mantle_types::{DirectoryId, NamespaceId, PartitionId, Permission, message::DirectoryRecord};

pub const LEVELS: usize = 10;
/// Name of the namespace; [`ROOT`] is its root's id.
pub const NAMESPACE: &str = "bench";
pub const ROOT: u64 = 1;
/// The writer's directories have ids from here up.
pub const MADE_LATER: u64 = 1 << 40;

/// The shape: how many directories each directory of a level has.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    fan_outs: [u64; LEVELS],
}

/// Spreads the bits of a number (SplitMix64's finalizer).
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A name of 5 to 13 bytes, 9 on average, as in the Debian archive; different from its siblings'.
fn name(level: usize, child: u64) -> String {
    let length = 5 + mix(child ^ (level as u64) << 32) % 9;
    let mut text = format!("{child:x}");
    while (text.len() as u64) < length {
        text.push(char::from(b'g' + (mix(child + text.len() as u64) % 20) as u8));
    }
    text
}

impl Tree {
    /// A tree of about this many directories.
    pub fn of(directories: u64) -> Self {
        let mut fan_outs = [1; LEVELS];
        let size = |fan_outs: &[u64; LEVELS]| {
            fan_outs
                .iter()
                .scan(1_u64, |width, fan_out| Some(std::mem::replace(width, *width * fan_out) * fan_out))
                .sum::<u64>()
        };
        // Widens the upper levels first, where few directories have many children.
        for at in (0..LEVELS).cycle() {
            fan_outs[at] += 1;
            if size(&fan_outs) > directories * 21 / 20 {
                fan_outs[at] -= 1;
                break;
            }
        }
        Self { fan_outs }
    }

    fn width(&self, level: usize) -> u64 {
        self.fan_outs[..level].iter().product()
    }

    /// Number of directories, without the root.
    pub fn directories(&self) -> u64 {
        (1..=LEVELS).map(|level| self.width(level)).sum()
    }

    fn id(&self, level: usize, at: u64) -> u64 {
        match level {
            0 => ROOT,
            _ => ROOT + 1 + (1..level).map(|above| self.width(above)).sum::<u64>() + at,
        }
    }

    /// Every directory, parents first.
    pub fn records(&self) -> impl Iterator<Item = DirectoryRecord> + '_ {
        let root = (0, NAMESPACE.to_owned(), ROOT);
        let below = (1..=LEVELS).flat_map(move |level| {
            let fan_out = self.fan_outs[level - 1];
            let first = self.id(level, 0);
            let parents = self.id(level - 1, 0);
            (0..self.width(level)).map(move |at| (parents + at / fan_out, name(level, at % fan_out), first + at))
        });
        std::iter::once(root).chain(below).map(|(pid, name, id)| record(pid, name, id, 1))
    }

    pub fn path(&self, level: usize, choice: u64) -> Vec<String> {
        let mut at = mix(choice) % self.width(level);
        let mut path: Vec<String> = (1..=level)
            .rev()
            .map(|level| {
                let fan_out = self.fan_outs[level - 1];
                let component = name(level, at % fan_out);
                at /= fan_out;
                component
            })
            .collect();
        path.reverse();
        path
    }

    /// The record of a directory of a level from 1 on; `choice` selects it.
    pub fn some_record(&self, level: usize, choice: u64, version: u64) -> DirectoryRecord {
        let at = mix(choice) % self.width(level);
        let fan_out = self.fan_outs[level - 1];
        record(self.id(level - 1, at / fan_out), name(level, at % fan_out), self.id(level, at), version)
    }

    pub fn some_id(&self, level: usize, choice: u64) -> u64 {
        self.id(level, mix(choice) % self.width(level))
    }
}

/// A record with mode 0755, which every caller may search.
pub fn record(pid: u64, name: String, id: u64, version: u64) -> DirectoryRecord {
    let permission = Permission { owner: 7, group: 7, mode: 0o755 };
    DirectoryRecord { ns: NamespaceId(ROOT), pid: PartitionId(pid), name, id: DirectoryId(id), version, permission }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn paths_lead_to_directories_and_sizes_are_as_asked() {
        for directories in [1_000, 100_000] {
            let tree = Tree::of(directories);
            let made = tree.directories();
            assert!((directories * 3 / 5..=directories * 21 / 20).contains(&made), "{made} of {directories}");
            let places: HashMap<_, _> = tree.records().map(|r| ((r.pid.0, r.name), r.id.0)).collect();
            assert_eq!(places.len() as u64, made + 1, "no two directories have one place");
            for choice in 0..200 {
                let level = 1 + choice as usize % LEVELS;
                let end = tree.path(level, choice).into_iter().fold(ROOT, |at, name| places[&(at, name)]);
                assert_eq!(end, tree.some_id(level, choice));
                let record = tree.some_record(level, choice, 1);
                assert_eq!((record.id.0, places.get(&(record.pid.0, record.name))), (end, Some(&end)));
            }
        }
    }
}
