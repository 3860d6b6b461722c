//! Finds the node of a Citus cluster that has a partition. Without Citus there is one node, and no shard.

use std::collections::HashSet;

use mantle_types::PartitionId;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    pub host: String,
    /// PostgreSQL's, or that of a PgBouncer beside it.
    pub port: u16,
}

/// The shards of `mantle.meta`, in the order of their smallest hash value.
#[derive(Debug, Default)]
pub struct ShardMap {
    shards: Vec<(i32, Address)>,
}

impl ShardMap {
    pub fn new(mut shards: Vec<(i32, Address)>) -> Self {
        shards.sort_by_key(|(least, _)| *least);
        Self { shards }
    }

    /// The node that has a partition; `None` when there is only one node.
    pub fn node_of(&self, pid: PartitionId) -> Option<&Address> {
        let after = self.shards.partition_point(|(least, _)| *least <= hash(pid.as_i64()));
        after.checked_sub(1).map(|at| &self.shards[at].1)
    }

    /// True when there is only one node.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    pub fn nodes(&self) -> HashSet<&Address> {
        self.shards.iter().map(|(_, address)| address).collect()
    }
}

/// PostgreSQL's `hashint8`, by which Citus distributes a bigint: Bob Jenkins' hash of one 32-bit word.
fn hash(value: i64) -> i32 {
    let (low, high) = (value as u32, (value >> 32) as u32);
    let word = low ^ if value >= 0 { high } else { !high };
    let start = 0x9e37_79b9_u32.wrapping_add(4).wrapping_add(3_923_095);
    let (mut a, mut b, mut c) = (start.wrapping_add(word), start, start);
    let mix = |of: &mut u32, with: u32, turn: u32| *of = (*of ^ with).wrapping_sub(with.rotate_left(turn));
    mix(&mut c, b, 14);
    mix(&mut a, c, 11);
    mix(&mut b, a, 25);
    mix(&mut c, b, 16);
    mix(&mut a, c, 4);
    mix(&mut b, a, 14);
    mix(&mut c, b, 24);
    c as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SELECT x, hashint8(x)
    #[test]
    fn hashes_are_postgresqls() {
        let known = [
            (0, -272_711_505),
            (1, -1_905_060_026),
            (1024, 926_523_258),
            (1025, 1_842_978_533),
            (5_000_000_000, -694_934_712),
            (-7, -82_204_417),
            (i64::MAX, -1_524_351_049),
        ];
        for (value, expected) in known {
            assert_eq!(hash(value), expected, "hashint8({value})");
        }
    }

    #[test]
    fn a_partition_is_where_its_hash_lies() {
        let node = |port| Address { host: "n".into(), port };
        let map = ShardMap::new(vec![(0, node(2)), (i32::MIN, node(1))]);
        assert_eq!(map.node_of(PartitionId(0)), Some(&node(1)));
        assert_eq!(map.node_of(PartitionId(1024)), Some(&node(2)));
        assert_eq!(ShardMap::default().node_of(PartitionId(1)), None);
    }
}
