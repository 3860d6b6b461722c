//! Golden bytes of the commands and of the snapshot (docs/formats.md): fixed values encode to exactly these bytes, and these
//! bytes decode to them. Names of types and fields may change; order, width and numbers may not.

use mantle_types::{Caller, DirectoryId, Epoch, Lineage, Lsn, NamespaceId, message::DirectoryOp};

use super::{Replica, SOURCE, State, caused, key, put, record, remove};
use crate::index::{
    Index,
    command::{
        Command, NamespaceState, Prepare, PrepareByRule, SourceBatch, SourceId, SourceStart, StreamTransaction,
        TransactionPiece,
    },
    last_seen::LastSeen,
};

const WHY: &str =
    "this format has changed: give it a new version, keep reading the old one, and tell so in docs/formats.md";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn prepare(source: &[&str], destination: &[&str]) -> Prepare {
    let owned = |path: &[&str]| path.iter().map(|name| (*name).to_owned()).collect();
    Prepare {
        request: key(9),
        namespace: "ns".to_owned(),
        source: owned(source),
        destination: owned(destination),
        caller: Caller { uid: 7, gids: vec![8] },
        overwrite: true,
        remove: false,
        lock_ms: 1000,
    }
}

fn commands() -> Vec<(Command, &'static str)> {
    let (ns, id, lsn) = (NamespaceId(1), DirectoryId(1024), Lsn(300));
    let lineage = Lineage { system_identifier: 7, timeline: 2 };
    let request = key(9);
    let ops = vec![caused(put(record(2, "d", 1024, 3)), request, 5), remove(record(2, "e", 1025, 4))];
    let DirectoryOp::Put { cause: Some(cause), .. } = ops[0].clone() else { unreachable!("it names a request") };
    let transactions = vec![StreamTransaction { commit_lsn: lsn, ops }];
    let pid = record(2, "d", 1024, 3).pid;
    let copied = vec![(SourceId(3), lsn)];
    let start = SourceStart { source: SourceId(3), lineage, consistent_point: Lsn(200), copied: lsn };
    vec![
        (
            Command::Stream(vec![SourceBatch { source: SourceId(3), transactions, position: Lsn(301) }]),
            "00010301ac020200010201648008030707ed0301000110000000000000000000000000000000090501010201658108040707ed0300ad02",
        ),
        (
            Command::Prepare(prepare(&["a", "b"], &["c"])),
            "0100011000000000000000000000000000000009026e7302016101620101630701080100e807",
        ),
        (Command::Release { request, attempt: 5 }, "020001100000000000000000000000000000000905"),
        (Command::RebuildBegin { epoch: Epoch(4), is_diverged: true }, "030401"),
        (Command::RebuildChunk { records: vec![record(2, "d", 1024, 3)] }, "0401010201648008030707ed03"),
        (Command::RebuildEnd { sources: vec![start] }, "0501030702c801ac02"),
        (Command::FollowTimeline { source: SourceId(3), timeline: 2 }, "060302"),
        (Command::Horizon { after: 5, positions: copied.clone() }, "07050103ac02"),
        (Command::RebuildNamespaces { namespaces: vec![(ns, NamespaceState::Serving, 6)] }, "0801010206"),
        (Command::Restrict { namespaces: vec![ns] }, "090101"),
        (Command::Admit { namespaces: vec![ns] }, "0a0101"),
        (Command::Track { ns, copied }, "0b010103ac02"),
        (Command::CopyChunk { ns, records: vec![record(2, "d", 1024, 3)] }, "0c0101010201648008030707ed03"),
        (
            Command::SetNamespaceState { ns, from: NamespaceState::Copying, to: Some(NamespaceState::Ready), moves: 1 },
            "0d0100010101",
        ),
        (Command::SetNamespaceState { ns, from: NamespaceState::Leaving, to: None, moves: 0 }, "0d01030000"),
        (Command::Forget { ns, ids: vec![id] }, "0e01018008"),
        (
            Command::TransactionPiece(TransactionPiece {
                source: SourceId(3),
                commit_lsn: lsn,
                ops: vec![DirectoryOp::Done { cause }, DirectoryOp::PartDone { pid, cause }],
            }),
            "0f03ac020202000110000000000000000000000000000000090503020001100000000000000000000000000000000905",
        ),
        (Command::Recover { epoch: Epoch(5), positions: vec![(SourceId(3), lsn)] }, "10050103ac02"),
        (
            Command::PrepareByRule(PrepareByRule { prepare: prepare(&["a", "b"], &["c"]), rule: 1, below: vec![id] }),
            "1100011000000000000000000000000000000009026e7302016101620101630701080100e80701018008",
        ),
        (
            Command::Prepares(vec![PrepareByRule { prepare: prepare(&["a", "b"], &["c"]), rule: 2, below: vec![id] }]),
            "120100011000000000000000000000000000000009026e7302016101620101630701080100e80702018008",
        ),
    ]
}

#[test]
fn commands_stay_as_they_are() {
    for (command, golden) in commands() {
        let bytes = postcard::to_stdvec(&command).unwrap();
        assert_eq!(hex(&bytes), golden, "{command:?}: {WHY}");
        assert_eq!(postcard::from_bytes::<Command>(&bytes).unwrap(), command);
    }
}

/// An index with something of everything that a snapshot holds, and one directory, so that no hash decides an order.
fn sample() -> Replica {
    let lineage = Lineage { system_identifier: 7, timeline: 2 };
    let source = |id| SourceStart { source: SourceId(id), lineage, consistent_point: Lsn(200), copied: Lsn(300) };
    let mut replica = Replica::empty();
    replica.begin(4, false);
    replica.apply(Command::RebuildNamespaces { namespaces: vec![(NamespaceId(1), NamespaceState::Serving, 6)] });
    replica.apply(Command::RebuildChunk { records: vec![record(0, "ns", 1, 1)] });
    replica.apply(Command::RebuildEnd { sources: vec![source(0), source(3)] });
    replica.stream(400, vec![put(record(1, "d", 1024, 1))]);
    replica.apply(Command::Prepare(prepare(&["d"], &["e"])));
    replica.stream(410, vec![remove(record(1, "d", 1024, 2))]);
    replica.apply(Command::Track { ns: NamespaceId(2), copied: vec![(SOURCE, Lsn(500))] });
    replica.apply(Command::Horizon { after: 5, positions: vec![(SourceId(3), Lsn(900))] });
    let ops = vec![put(record(0, "ns", 1, 2))];
    replica.apply(Command::TransactionPiece(TransactionPiece { source: SOURCE, commit_lsn: Lsn(600), ops }));
    replica
}

const SNAPSHOT: &str = concat!(
    "4d544c4944580007",
    "2a000000f7d73a6700040001000110000000000000000000000000000000098680808080c0018008010164010165e8070000",
    "3e0000008eeafb5802090a010206000a0200000100f403040007029a03ac0204030702c701ac020b00d8040c00019a0301dbaba3e50c0c0300c801",
    "0580080207060501038407",
    "0e0000002bc542b70700026e7301020707ed03000801",
);

#[test]
fn the_snapshot_stays_as_it_is() {
    let index = sample().index;
    let mut bytes = Vec::new();
    index.write_snapshot(&mut bytes).unwrap();
    assert_eq!(hex(&bytes), SNAPSHOT, "{WHY}");
    let read = Index::read_snapshot(&mut &bytes[..]).unwrap();
    assert_eq!(State::of(&read), State::of(&index));
    assert_eq!(read.namespaces(), index.namespaces());
    assert!(matches!(index.last_seen(SOURCE), Some(LastSeen::Transaction { checksum: Some(_), .. })));
    for source in [SOURCE, SourceId(3)] {
        assert_eq!(read.last_seen(source), index.last_seen(source));
    }
}

/// The formats before lack items, and differ by their number alone. They are read.
#[test]
fn a_snapshot_of_the_format_before_is_read() {
    let mut bytes = Vec::new();
    Replica::new().index.write_snapshot(&mut bytes).unwrap();
    assert_eq!(bytes[7], 7);
    for (number, is_read) in [(2, true), (4, true), (7, true), (3, false), (5, false), (6, false)] {
        bytes[7] = number;
        assert_eq!(Index::read_snapshot(&mut &bytes[..]).is_ok(), is_read, "format {number}");
    }
}
