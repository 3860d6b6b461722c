//! Replicas that apply the same log are equal, also when one starts from a snapshot. Reading a snapshot never panics, whatever
//! its bytes.

use std::io::{Error, Read};

use mantle_types::Permission;
use proptest::{collection::vec, prelude::*, sample::Index as Pick};

use super::*;
use crate::index::{
    Part,
    command::{Prepare, TransactionPiece},
};

fn some_record() -> impl Strategy<Value = DirectoryRecord> {
    (0u64..8, 0u8..4, 0u64..10, 0u64..6, 0u32..3, 0u16..0o777).prop_map(|(pid, name, id, version, owner, mode)| {
        let permission = Permission { owner, group: 1, mode: mode | 0o111 };
        DirectoryRecord { permission, ..record(pid, &format!("n{name}"), id, version) }
    })
}

fn some_cause() -> impl Strategy<Value = Cause> {
    (0u128..4, 0u64..40).prop_map(|(number, attempt)| Cause { request: key(number), attempt })
}

fn some_op() -> impl Strategy<Value = DirectoryOp> {
    prop_oneof![
        6 => (some_record(), proptest::option::of(some_cause())).prop_map(|(record, cause)| DirectoryOp::Put { record, cause }),
        2 => (some_record(), proptest::option::of(some_cause()))
            .prop_map(|(record, cause)| DirectoryOp::Remove { record, cause }),
        1 => some_cause().prop_map(|cause| DirectoryOp::Done { cause }),
    ]
}

fn some_path() -> impl Strategy<Value = Vec<String>> {
    vec(0u8..4, 0..4).prop_map(|names| names.into_iter().map(|name| format!("n{name}")).collect())
}

fn some_prepare() -> impl Strategy<Value = Command> {
    (0u128..4, some_path(), some_path(), any::<[bool; 2]>(), 0u32..2, 0u8..2).prop_map(
        |(number, source, destination, [overwrite, remove], uid, namespace)| {
            Command::Prepare(Prepare {
                request: key(number),
                namespace: format!("n{namespace}"),
                source,
                destination,
                caller: Caller { uid, gids: vec![] },
                overwrite,
                remove,
                lock_ms: 100,
            })
        },
    )
}

/// Any command, from a small world so that commands interact. The LSNs grow slowly, so that some repeat.
fn some_command() -> impl Strategy<Value = Command> {
    let stream = (0u32..3, vec((0u64..3, vec(some_op(), 0..5)), 0..4), 0u64..60).prop_map(|(source, ops, lsn)| {
        let transaction = |(i, (gap, ops))| StreamTransaction { commit_lsn: Lsn(lsn + gap + 3 * i as u64), ops };
        let transactions = ops.into_iter().enumerate().map(transaction).collect();
        SourceBatch { source: SourceId(source), transactions, position: Lsn(lsn) }
    });
    prop_oneof![
        12 => vec(stream, 0..3).prop_map(Command::Stream),
        2 => (0u32..3, vec(some_op(), 0..5), 0u64..60).prop_map(|(source, ops, lsn)| {
            Command::TransactionPiece(TransactionPiece { source: SourceId(source), commit_lsn: Lsn(lsn), ops })
        }),
        8 => some_prepare(),
        2 => (0u128..4, 0u64..40).prop_map(|(number, attempt)| Command::Release { request: key(number), attempt }),
        1 => (0u64..4, any::<bool>())
            .prop_map(|(epoch, is_diverged)| Command::RebuildBegin { epoch: Epoch(epoch), is_diverged }),
        3 => vec(some_record(), 0..10).prop_map(|records| Command::RebuildChunk { records }),
        1 => vec((0u32..3, 0u64..60, 0u64..5), 0..3).prop_map(|sources| {
            let start = |(source, lsn, copied)| SourceStart { copied: Lsn(lsn + copied), ..start(SourceId(source), Lsn(lsn)) };
            Command::RebuildEnd { sources: sources.into_iter().map(start).collect() }
        }),
        1 => (0u32..3, 1u32..4)
            .prop_map(|(source, timeline)| Command::FollowTimeline { source: SourceId(source), timeline }),
        2 => (0u64..40, vec((0u32..3, 0u64..60), 0..3)).prop_map(|(after, positions)| Command::Horizon {
            after,
            positions: positions.into_iter().map(|(source, lsn)| (SourceId(source), Lsn(lsn))).collect(),
        }),
    ]
}

/// A log that soon serves a few directories with paths, and then has any commands.
fn some_log() -> impl Strategy<Value = Vec<Command>> {
    (vec(some_record(), 0..20), vec(some_command(), 0..40)).prop_map(|(mut records, rest)| {
        records.extend([record(0, "n0", 1, 5), record(1, "n0", 2, 5), record(1, "n1", 3, 5), record(2, "n2", 4, 5)]);
        let begin = Command::RebuildBegin { epoch: Epoch(1), is_diverged: false };
        let end = Command::RebuildEnd { sources: vec![start(SOURCE, Lsn(1)), start(SourceId(1), Lsn(1))] };
        [begin, Command::RebuildChunk { records }, end].into_iter().chain(rest).collect()
    })
}

fn snapshot_of(index: &Index) -> Vec<u8> {
    let mut bytes = Vec::new();
    index.write_snapshot(&mut bytes).unwrap();
    bytes
}

fn replica_of(log: &[Command]) -> Replica {
    let mut replica = Replica::empty();
    for command in log {
        replica.apply(command.clone());
    }
    replica
}

/// The payload of every frame of a snapshot.
fn frames(snapshot: &[u8]) -> Vec<std::ops::Range<usize>> {
    let (mut frames, mut at) = (Vec::new(), 8);
    while at < snapshot.len() {
        let length = u32::from_le_bytes(snapshot[at..at + 4].try_into().unwrap()) as usize;
        frames.push(at + 8..at + 8 + length);
        at += 8 + length;
    }
    frames
}

/// Reads a manipulated snapshot. The result is an error or a sound index.
fn read(bytes: &[u8]) -> Option<Index> {
    let index = Index::read_snapshot(&mut &bytes[..]).ok()?;
    index.invariants();
    Some(index)
}

proptest! {
    #![proptest_config(runs(300))]

    #[test]
    fn replicas_agree_also_through_a_snapshot_and_in_parts(log in some_log(), at in any::<Pick>(), part in 1usize..5) {
        let cut = at.index(log.len() + 1);
        let (mut whole, mut other) = (Replica::empty(), Replica::empty());
        other.part = part;
        for (i, command) in log.iter().enumerate() {
            if i == cut {
                other.restart();
            }
            prop_assert_eq!(whole.apply(command.clone()), other.apply(command.clone()));
            prop_assert_eq!(&whole.effects, &other.effects);
            prop_assert_eq!(State::of(&whole.index), State::of(&other.index));
            prop_assert_eq!(whole.index.digest(), other.index.digest());
        }
    }

    /// Whatever is applied between the parts of the snapshot, in parts of any size.
    #[test]
    fn a_snapshot_is_of_the_moment_when_it_was_begun(log in some_log(), at in any::<Pick>(), part in 1usize..4) {
        let (before, after) = log.split_at(at.index(log.len() + 1));
        let mut replica = replica_of(before);
        replica.part = part;
        let (then, mut writer) = (State::of(&replica.index), replica.index.begin_snapshot().unwrap());
        let (mut bytes, mut next) = (Vec::new(), after.iter());
        let ended = loop {
            match writer.write_part(&replica.index, part, &mut bytes).unwrap() {
                Part::Written => next.next().map(|command| replica.apply(command.clone())),
                ended => break ended,
            };
        };
        if ended == Part::Superseded {
            let is_rebuild = |c: &Command| matches!(c, Command::RebuildBegin { .. } | Command::RebuildEnd { .. });
            prop_assert!(after.iter().any(is_rebuild));
        } else {
            let mut back = replica_of(before);
            back.index = read(&bytes).unwrap();
            prop_assert_eq!(State::of(&back.index), then);
            for command in after {
                back.apply(command.clone());
            }
            for command in next {
                replica.apply(command.clone());
            }
            prop_assert_eq!(State::of(&back.index), State::of(&replica.index));
        }
    }

    #[test]
    fn a_cut_or_flipped_snapshot_is_refused(log in some_log(), at in any::<Pick>(), bit in 0u8..8) {
        let mut bytes = snapshot_of(&replica_of(&log).index);
        let at = at.index(bytes.len());
        prop_assert!(read(&bytes[..at]).is_none());
        bytes[at] ^= 1 << bit;
        prop_assert!(read(&bytes).is_none());
    }

    /// The checksums fit, so that only the items are wrong.
    #[test]
    fn forged_items_never_panic(log in some_log(), edits in vec((any::<Pick>(), any::<u8>()), 1..8), cut in any::<Pick>()) {
        let bytes = snapshot_of(&replica_of(&log).index);
        let frame = frames(&bytes)[0].clone();
        let mut payload = bytes[frame].to_vec();
        for (at, byte) in edits {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        for payload in [&payload[..], &payload[..=cut.index(payload.len())]] {
            let mut forged = bytes[..8].to_vec();
            forged.extend((payload.len() as u32).to_le_bytes());
            forged.extend(crc32fast::hash(payload).to_le_bytes());
            forged.extend(payload);
            read(&forged);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in vec(any::<u8>(), 0..300)) {
        read(&bytes);
        bytes.splice(0..0, *b"MTLIDX\x00\x01");
        prop_assert!(read(&bytes).is_none());
    }
}

#[test]
fn a_snapshot_of_many_frames_comes_back_whole_through_a_slow_reader() {
    /// Returns one byte at a time.
    struct Slow<'a>(&'a [u8]);
    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
            let n = buffer.len().min(1);
            self.0.read(&mut buffer[..n])
        }
    }
    let mut replica = Replica::new();
    let records = (2..10_000).map(|id| put(record(1 + id / 100, &format!("directory {id}"), id, id)));
    replica.stream(10, records.collect());
    let bytes = snapshot_of(&replica.index);
    assert!(frames(&bytes).len() > 3);
    let back = Index::read_snapshot(&mut Slow(&bytes)).unwrap();
    back.invariants();
    assert_eq!(State::of(&back), State::of(&replica.index));
    assert_eq!(back.digest(), replica.index.digest());
}

#[test]
fn before_images_are_dropped_with_the_snapshot_writer() {
    let mut replica = Replica::new();
    let records =
        |versions: u64| (2..1_000).map(move |id| put(record(1, &format!("directory {id}"), id, versions))).collect();
    replica.stream(10, records(1));
    let bytes = replica.index.heap_bytes();
    let writer = replica.index.begin_snapshot().unwrap();
    replica.stream(20, records(2));
    assert!(replica.index.heap_bytes() > bytes + 1_000 * 8);
    drop(writer);
    replica.stream(30, records(3));
    assert_eq!(replica.index.heap_bytes(), bytes);
}
