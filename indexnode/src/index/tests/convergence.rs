//! P1: the index reaches exactly what PostgreSQL holds, in whatever order the streams of several sources arrive, and whenever
//! each source was copied.
//!
//! The world is a list of committed transactions. Time is their number, which is also the commit LSN at every source. The pid
//! of a place decides which source has its row.
//!
//! Every source's slot exists before any source is copied. Of the commits between a source's slot and a moment at which all
//! slots exist and the copy has not begun, only removals are applied. Both are needed. A copied directory may have moved to a
//! source that is copied later, and been removed there. And a directory put in that window may have been removed on another
//! source before that one's slot existed.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use proptest::{prelude::*, sample::Index as Pick};

use super::*;
use crate::index::command::TransactionPiece;

type Places = BTreeMap<(u64, String), u64>;

/// The actions of a random step; one that is impossible is skipped.
#[derive(Clone, Debug)]
enum Step {
    Create { pid: u64, name: u8 },
    Remove { which: Pick },
    Change { which: Pick, mode: u16 },
    Rename { which: Pick, pid: u64, name: u8, overwrite: bool },
}

/// The rows of all sources after one transaction, and the messages that it emitted on each.
#[derive(Clone, Default)]
struct World {
    places: Places,
    records: BTreeMap<u64, DirectoryRecord>,
    messages: Vec<(SourceId, DirectoryOp)>,
}

const PIDS: Range<u64> = 1..9;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (PIDS, 0u8..4).prop_map(|(pid, name)| Step::Create { pid, name }),
        3 => any::<Pick>().prop_map(|which| Step::Remove { which }),
        2 => (any::<Pick>(), 0u16..0o777).prop_map(|(which, mode)| Step::Change { which, mode }),
        6 => (any::<Pick>(), PIDS, 0u8..4, any::<bool>())
            .prop_map(|(which, pid, name, overwrite)| Step::Rename { which, pid, name, overwrite }),
    ]
}

impl World {
    fn pick(&self, which: &Pick) -> Option<DirectoryRecord> {
        let at = which.index(self.records.len().max(1));
        self.records.values().nth(at).cloned()
    }

    /// The next world, and the messages of the transaction in between. Ids grow with time, so none is used twice.
    fn after(&self, step: &Step, time: u64, source_of: impl Fn(u64) -> SourceId) -> Self {
        let mut next = Self { places: self.places.clone(), records: self.records.clone(), messages: vec![] };
        match step {
            Step::Create { pid, name } => {
                let place = (*pid, format!("n{name}"));
                if !next.places.contains_key(&place) {
                    next.put(record(*pid, &place.1, 100 + time, 1), &source_of);
                }
            }
            Step::Remove { which } => {
                if let Some(record) = next.pick(which) {
                    next.remove(record, &source_of);
                }
            }
            Step::Change { which, mode } => {
                if let Some(mut record) = next.pick(which) {
                    record.permission.mode = *mode;
                    record.version += 1;
                    next.put(record, &source_of);
                }
            }
            Step::Rename { which, pid, name, overwrite } => {
                let place = (*pid, format!("n{name}"));
                let Some(mut record) = next.pick(which) else { return next };
                let replaced = next.places.get(&place).copied();
                if replaced == Some(record.id.0) || (replaced.is_some() && !overwrite) {
                    return next;
                }
                if let Some(replaced) = replaced {
                    let replaced = next.records[&replaced].clone();
                    next.remove(replaced, &source_of);
                }
                let from = record.pid.0;
                next.places.remove(&(from, record.name.clone()));
                (record.pid, record.name) = (PartitionId(place.0), place.1);
                record.version += 1;
                next.put(record, &source_of);
                if source_of(from) != source_of(*pid) {
                    let cause = Cause { request: key(u128::from(time)), attempt: 0 };
                    next.messages.push((source_of(from), DirectoryOp::Done { cause }));
                }
            }
        }
        next
    }

    fn put(&mut self, record: DirectoryRecord, source_of: impl Fn(u64) -> SourceId) {
        self.places.insert((record.pid.0, record.name.clone()), record.id.0);
        self.records.insert(record.id.0, record.clone());
        self.messages.push((source_of(record.pid.0), put(record)));
    }

    fn remove(&mut self, mut record: DirectoryRecord, source_of: impl Fn(u64) -> SourceId) {
        self.places.remove(&(record.pid.0, record.name.clone()));
        self.records.remove(&record.id.0);
        record.version += 1;
        self.messages.push((source_of(record.pid.0), remove(record)));
    }
}

/// The worlds at times 0, 1, …: `history[t]` has what transaction `t` made and emitted (its commit LSN is 10 t).
fn history(steps: &[Step], source_of: impl Fn(u64, u64) -> SourceId) -> Vec<World> {
    let mut history = vec![World::default()];
    for (i, step) in steps.iter().enumerate() {
        let time = i as u64 + 1;
        history.push(history[i].after(step, time, |pid| source_of(pid, time)));
    }
    history
}

fn lsn(time: usize) -> Lsn {
    Lsn(time as u64 * 10)
}

/// Delivers every source's queue from its slot on, in an order that `picks` decides.
fn deliver(replica: &mut Replica, history: &[World], mut from: Vec<usize>, picks: &[(Pick, u8, bool)]) {
    let sources = from.len();
    let mut picks = picks.iter().cycle();
    let mut newest = 0;
    while from.iter().any(|time| *time < history.len()) {
        let (pick, count, horizon) = picks.next().expect("there is a pick");
        let behind: Vec<usize> = (0..sources).filter(|s| from[*s] < history.len()).collect();
        let s = behind[pick.index(behind.len())];
        let source = SourceId(s as u32);
        let until = (from[s] + 1 + usize::from(*count)).min(history.len());
        let transactions = (from[s]..until).filter_map(|time| {
            let messages = history[time].messages.iter().filter(|(at, _)| *at == source);
            let ops: Vec<DirectoryOp> = messages.map(|(_, op)| op.clone()).collect();
            (!ops.is_empty()).then(|| StreamTransaction { commit_lsn: lsn(time), ops })
        });
        if *horizon {
            transactions.for_each(|transaction| begin_and_apply(replica, source, transaction));
            replica.apply(batch(source, vec![], lsn(until)));
        } else {
            replica.apply(batch(source, transactions.collect(), lsn(until)));
        }
        from[s] = until;
        newest = newest.max(until);
        if *horizon {
            sample(replica, sources, newest);
        }
    }
    for s in 0..sources {
        replica.apply(batch(SourceId(s as u32), vec![], lsn(history.len())));
    }
    sample(replica, sources, history.len());
}

/// A transaction too large for an entry, whose leader died before its end.
fn begin_and_apply(replica: &mut Replica, source: SourceId, transaction: StreamTransaction) {
    let StreamTransaction { commit_lsn, ops } = &transaction;
    for ops in ops.chunks(1) {
        replica.apply(Command::TransactionPiece(TransactionPiece {
            source,
            commit_lsn: *commit_lsn,
            ops: ops.to_vec(),
        }));
    }
    replica.restart();
    let position = Lsn(commit_lsn.0 + 1);
    replica.apply(batch(source, vec![transaction], position));
}

/// The earliest positions that may be sampled now: nothing applied is above them.
fn sample(replica: &mut Replica, sources: usize, time: usize) {
    let positions = (0..sources).map(|s| (SourceId(s as u32), lsn(time))).collect();
    replica.apply(Command::Horizon { after: replica.log_index, positions });
}

fn assert_same(replica: &Replica, world: &World) {
    let tree = replica.index.serving.as_ref().unwrap();
    let mut rows = BTreeMap::new();
    for (r, is_displaced) in tree.table.records() {
        assert!(!is_displaced, "{} is displaced after all came", r.id);
        let place = (r.pid.0, r.name.to_owned());
        assert_eq!(tree.table.lookup(r.pid, r.name).map(|directory| directory.id), Some(r.id));
        rows.insert(place, (r.id, r.version, r.permission));
    }
    let expected: BTreeMap<_, _> =
        world.records.values().map(|r| ((r.pid.0, r.name.clone()), (r.id, r.version, r.permission))).collect();
    assert_eq!(rows, expected);
    assert_eq!(tree.removals, Removals::default(), "removed versions are forgotten in the end");
}

proptest! {
    #![proptest_config(runs(300))]

    /// Slots are created one after another, then every source is copied at its own moment, then the streams arrive.
    #[test]
    fn copies_and_streams_of_several_sources_converge(
        steps in proptest::collection::vec(step(), 1..60),
        sources in 1usize..4,
        slots in proptest::collection::vec(any::<Pick>(), 4),
        copies in proptest::collection::vec(any::<Pick>(), 4),
        cuts in proptest::collection::vec(any::<Pick>(), 4),
        picks in proptest::collection::vec((any::<Pick>(), 0u8..6, proptest::bool::weighted(0.3)), 1..50),
    ) {
        let source_of = |pid, _| SourceId((pid % sources as u64) as u32);
        let history = history(&steps, source_of);
        // With one source, slot and copy show the same moment: the slot exports its snapshot.
        let created: Vec<usize> = slots[..sources].iter().map(|p| p.index(history.len())).collect();
        let first_copy = *created.iter().max().unwrap();
        let copy_of = |s: usize| if sources == 1 { first_copy } else { first_copy + copies[s].index(history.len() - first_copy) };
        let copied: Vec<usize> = (0..sources).map(copy_of).collect();
        let mut replica = Replica::empty();
        replica.begin(1, false);
        for s in (0..sources).rev() {
            let rows = history[copied[s]].records.values();
            let records = rows.filter(|r| source_of(r.pid.0, 0) == SourceId(s as u32)).cloned().collect();
            replica.apply(Command::RebuildChunk { records });
        }
        let from: Vec<usize> = created.iter().map(|time| time + 1).collect();
        // A known moment before the copy at which all slots existed.
        let known = |s: usize| lsn(first_copy + cuts[s].index(copied[s] - first_copy + 1) + 1);
        let start = |s: usize| SourceStart { copied: known(s), ..start(SourceId(s as u32), lsn(from[s])) };
        replica.apply(Command::RebuildEnd { sources: (0..sources).map(start).collect() });
        deliver(&mut replica, &history, from, &picks);
        assert_same(&replica, history.last().unwrap());
    }

    /// Without a copy it does not even matter which source sends a message: shards move.
    #[test]
    fn streams_converge_though_shards_move(
        steps in proptest::collection::vec(step(), 1..60),
        sources in 2usize..4,
        homes in proptest::collection::vec(any::<u8>(), 1..20),
        picks in proptest::collection::vec((any::<Pick>(), 0u8..6, proptest::bool::weighted(0.3)), 1..50),
    ) {
        let source_of = |pid: u64, time: u64| {
            SourceId(u32::from(homes[(pid * 7 + time / 5) as usize % homes.len()]) % sources as u32)
        };
        let history = history(&steps, source_of);
        let mut replica = Replica::empty();
        replica.rebuild(1, vec![], (0..sources).map(|s| start(SourceId(s as u32), Lsn(1))).collect());
        deliver(&mut replica, &history, vec![1; sources], &picks);
        assert_same(&replica, history.last().unwrap());
    }
}

/// The table alone against two maps, with any order of puts and removals.
#[test]
fn table_depends_on_the_newest_records_only() {
    proptest!(runs(500), |(ops in proptest::collection::vec((1u64..6, 0u8..3, 2u64..9, 1u64..6, any::<bool>()), 1..60))| {
        let mut replica = Replica::empty();
        replica.rebuild(1, vec![], (0..2).map(|s| start(SourceId(s), Lsn(1))).collect());
        let mut newest: HashMap<u64, (u64, bool, DirectoryRecord)> = HashMap::new();
        for (i, (pid, name, id, version, is_put)) in ops.into_iter().enumerate() {
            let record = record(pid, &format!("n{name}"), id, version);
            let op = if is_put { put(record.clone()) } else { remove(record.clone()) };
            replica.stream(10 + i as u64, vec![op]);
            let wins = newest.get(&id).is_none_or(|(v, ..)| version > *v || (version == *v && !is_put));
            if wins {
                newest.insert(id, (version, is_put, record));
            }
        }
        let table = &replica.index.serving.as_ref().unwrap().table;
        let mut rows: Vec<_> = table.records().map(|(r, _)| (r.id, r.pid, r.name.to_owned(), r.version)).collect();
        rows.sort();
        let mut expected: Vec<_> = newest.into_values().filter(|(_, is_put, _)| *is_put).map(|(_, _, r)| (r.id, r.pid, r.name, r.version)).collect();
        expected.sort();
        prop_assert_eq!(rows, expected);
    });
}
