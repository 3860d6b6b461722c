//! Random runs of mkdir, rmdir, setattr, lookups and concurrent renames with the whole protocol: prepare, then PostgreSQL's
//! transaction or an abort record, then the stream; with rebuilds and restarts in between. The index answers as the model does,
//! and no interleaving makes a cycle in PostgreSQL.

use std::collections::BTreeSet;

use mantle_types::ErrorCode;
use proptest::{prelude::*, sample::Index as Pick};

use super::{
    model::{Model, Place},
    *,
};
use crate::index::command::{FIRST_RULE, NEWEST_RULE, Prepare, PrepareByRule, PreparedRename};

#[derive(Clone, Debug)]
enum Step {
    Mkdir { parent: Pick, name: u8 },
    Rmdir { which: Pick },
    Chmod { which: Pick, owner: u32, mode: u16 },
    Lookup { which: Pick, rest: Option<u8>, uid: u32 },
    Prepare { request: u128, source: Pick, parent: Pick, name: u8, overwrite: bool, uid: u32, rule: u32 },
    Commit { which: Pick },
    Abort { which: Pick },
    Deliver { count: usize },
    Begin { raise: u64 },
    End,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let pick = any::<Pick>;
    let uid = || prop_oneof![4 => Just(0u32), 1 => 1u32..3];
    prop_oneof![
        6 => (pick(), 0u8..4).prop_map(|(parent, name)| Step::Mkdir { parent, name }),
        2 => pick().prop_map(|which| Step::Rmdir { which }),
        1 => (pick(), 1u32..3, prop::sample::select(vec![0o755, 0o700, 0o711, 0o777, 0o1777, 0o000]))
            .prop_map(|(which, owner, mode)| Step::Chmod { which, owner, mode }),
        4 => (pick(), proptest::option::of(0u8..4), uid()).prop_map(|(which, rest, uid)| Step::Lookup { which, rest, uid }),
        10 => (0u128..8, pick(), pick(), 0u8..4, any::<bool>(), uid(), FIRST_RULE..=NEWEST_RULE).prop_map(
            |(request, source, parent, name, overwrite, uid, rule)| Step::Prepare {
                request, source, parent, name, overwrite, uid, rule
            }
        ),
        6 => pick().prop_map(|which| Step::Commit { which }),
        2 => pick().prop_map(|which| Step::Abort { which }),
        5 => (1usize..5).prop_map(|count| Step::Deliver { count }),
        1 => (0u64..2).prop_map(|raise| Step::Begin { raise }),
        3 => Just(Step::End),
        1 => Just(Step::Restart),
    ]
}

/// A rename between its prepare and its end.
struct Rename {
    request: RequestKey,
    prepared: PreparedRename,
    source: Place,
    destination: Place,
}

/// The rows that a rebuild copied, and the first transaction after it.
struct Copied {
    rows: BTreeMap<u64, DirectoryRecord>,
    next: usize,
}

struct World {
    /// PostgreSQL's rows, as a model without locks. Its `chain` finds cycles.
    postgres: Model,
    epoch: u64,
    answered: BTreeSet<RequestKey>,
    committed: BTreeSet<(RequestKey, u64)>,
    aborted: BTreeSet<(RequestKey, u64)>,
    /// Every transaction; number i has commit LSN 10 (i + 1).
    log: Vec<Vec<DirectoryOp>>,
    /// Number of applied transactions.
    applied: usize,
    /// Lookups wait until this many are applied.
    served: usize,
    open: Vec<Rename>,
    rebuild: Option<Copied>,
    replica: Replica,
    model: Model,
}

fn lsn(transaction: usize) -> Lsn {
    Lsn(10 * (transaction as u64 + 1))
}

impl World {
    fn new() -> Self {
        let rows = BTreeMap::from([(1, record(0, "ns", 1, 1))]);
        let postgres = Model { rows: rows.clone(), ..Model::default() };
        Self {
            postgres,
            epoch: 1,
            answered: BTreeSet::new(),
            committed: BTreeSet::new(),
            aborted: BTreeSet::new(),
            log: vec![],
            applied: 0,
            served: 0,
            open: vec![],
            rebuild: None,
            replica: Replica::new(),
            model: Model { rows, epoch: 1, ..Model::default() },
        }
    }

    fn pick(model: &Model, which: &Pick) -> u64 {
        *model.rows.keys().nth(which.index(model.rows.len())).unwrap()
    }

    fn commit(&mut self, ops: Vec<DirectoryOp>) {
        self.postgres.apply(&ops);
        self.log.push(ops);
        for id in self.postgres.rows.keys() {
            self.postgres.chain(*id);
        }
    }

    /// A change without a lock, with its own request id.
    fn commit_change(&mut self, op: DirectoryOp) {
        let request = key(1000 + self.log.len() as u128);
        self.commit(vec![caused(op, request, 0)]);
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Mkdir { parent, name } => {
                let parent = Self::pick(&self.postgres, parent);
                let name = format!("n{name}");
                if self.postgres.at(parent, &name).is_none() {
                    self.commit_change(put(record(parent, &name, 100 + self.log.len() as u64, 1)));
                }
            }
            Step::Rmdir { which } => {
                let id = Self::pick(&self.postgres, which);
                let mut row = self.postgres.rows[&id].clone();
                if id != NS.0 && !self.has_children(id) {
                    row.version += 1;
                    self.commit_change(remove(row));
                }
            }
            Step::Chmod { which, owner, mode } => {
                let mut row = self.postgres.rows[&Self::pick(&self.postgres, which)].clone();
                row.permission = Permission { owner: *owner, group: *owner, mode: *mode };
                row.version += 1;
                self.commit_change(put(row));
            }
            Step::Lookup { which, rest, uid } => self.lookup(which, *rest, *uid),
            Step::Prepare { .. } => self.prepare(step),
            Step::Commit { which } if !self.open.is_empty() => {
                let at = which.index(self.open.len());
                self.commit_rename(at);
            }
            Step::Abort { which } if !self.open.is_empty() => {
                let at = which.index(self.open.len());
                self.abort_rename(at);
            }
            Step::Commit { .. } | Step::Abort { .. } => {}
            Step::Deliver { count } => self.deliver(*count),
            Step::Begin { raise } => self.begin_rebuild(*raise),
            Step::End => self.end_rebuild(),
            Step::Restart => self.replica.restart(),
        }
        self.set_refusal();
        let locks: BTreeSet<_> =
            self.model.locks.iter().map(|lock| (lock.request, lock.attempt, lock.source_id)).collect();
        let held = self.replica.index.locks();
        assert_eq!(locks, held.iter().map(|lock| (lock.request, lock.attempt, lock.source_id.0)).collect());
    }

    fn has_children(&self, id: u64) -> bool {
        self.postgres.rows.values().any(|r| r.pid.0 == id)
    }

    fn set_refusal(&mut self) {
        self.model.refusal = match (self.applied < self.served, &self.rebuild) {
            (true, _) => Some(ErrorCode::IndexUnavailable),
            (false, Some(_)) => Some(ErrorCode::StaleEpoch),
            (false, None) => None,
        };
        assert_eq!(self.replica.index.is_serving(), self.applied >= self.served);
        assert_eq!(self.replica.index.is_rebuilding(), self.rebuild.is_some());
    }

    fn lookup(&self, which: &Pick, rest: Option<u8>, uid: u32) {
        // A path that PostgreSQL has. The index may be behind or ahead of it.
        let mut path = self.postgres.path(Self::pick(&self.postgres, which));
        path.extend(rest.map(|name| format!("n{name}")));
        let caller = Caller { uid, gids: vec![] };
        let components: Vec<&str> = path.iter().map(String::as_str).collect();
        let resolution = self.replica.index.resolve("ns", &components, &caller);
        match self.model.resolve(&path, &caller) {
            Ok(expected) => assert_eq!(resolution, expected),
            Err(code) => assert_eq!(resolution.outcome, Err(code)),
        }
    }

    fn prepare(&mut self, step: &Step) {
        let Step::Prepare { request, source, parent, name, overwrite, uid, rule } = step else { return };
        let source = self.model.path(Self::pick(&self.model, source));
        let mut destination = self.model.path(Self::pick(&self.model, parent));
        destination.push(format!("n{name}"));
        let prepare = Prepare {
            request: RequestKey { ns: NamespaceId(0), ..key(*request) },
            namespace: "ns".to_owned(),
            source,
            destination,
            caller: Caller { uid: *uid, gids: vec![] },
            overwrite: *overwrite,
            remove: false,
            lock_ms: 5,
        };
        let command = match *rule {
            FIRST_RULE => Command::Prepare(prepare.clone()),
            rule => Command::PrepareByRule(PrepareByRule { prepare: prepare.clone(), rule, below: Vec::new() }),
        };
        let Applied::Prepared(answer) = self.replica.apply(command) else { unreachable!() };
        let expected = self.model.prepare(self.replica.log_index, *rule, &prepare);
        assert_eq!(answer.map_err(|error| error.code()), expected, "{prepare:?}");
        if let Ok(prepared) = expected {
            let place = |pid: PartitionId, path: &[String]| (pid.0, path.last().unwrap().clone());
            let source = place(prepared.source_pid, &prepare.source);
            let destination = place(prepared.destination_pid, &prepare.destination);
            self.open.push(Rename { request: key(*request), prepared, source, destination });
        }
    }

    /// PostgreSQL's transaction: it checks what only PostgreSQL knows, and moves the source or nothing.
    fn commit_rename(&mut self, at: usize) {
        let Rename { request, prepared, source, destination } = &self.open[at];
        let attempt = (*request, prepared.attempt);
        let occupant = self.postgres.at(destination.0, &destination.1);
        let still_there = self.postgres.at(source.0, &source.1).is_some_and(|r| r.id == prepared.source_id);
        if prepared.epoch.0 != self.epoch
            || self.answered.contains(request)
            || self.aborted.contains(&attempt)
            || !still_there
            || !self.postgres.rows.contains_key(&destination.0)
            || occupant.map(|r| r.id) != prepared.replaced
            || occupant.is_some_and(|r| self.has_children(r.id.0))
        {
            return;
        }
        let mut ops = vec![];
        if let Some(replaced) = occupant {
            ops.push(remove(DirectoryRecord { version: replaced.version + 1, ..replaced.clone() }));
        }
        let moved = self.postgres.rows[&prepared.source_id.0].clone();
        let (pid, name, version) = (PartitionId(destination.0), destination.1.clone(), moved.version + 1);
        ops.push(caused(put(DirectoryRecord { pid, name, version, ..moved }), *request, prepared.attempt));
        self.answered.insert(*request);
        self.committed.insert(attempt);
        self.commit(ops);
    }

    /// Writes the abort record first. The lock is released only if that attempt did not commit.
    fn abort_rename(&mut self, at: usize) {
        let Rename { request, prepared, .. } = self.open.swap_remove(at);
        let attempt = (request, prepared.attempt);
        if self.committed.contains(&attempt) {
            return;
        }
        self.aborted.insert(attempt);
        self.replica.apply(Command::Release { request, attempt: attempt.1 });
        let held = self.model.locks.len();
        self.model.locks.retain(|lock| (lock.request, lock.attempt) != attempt);
        let unlocked = if held == self.model.locks.len() { vec![] } else { vec![attempt] };
        assert_eq!(self.replica.effects.finished, []);
        assert_eq!(self.replica.effects.unlocked, unlocked);
    }

    fn deliver(&mut self, count: usize) {
        let until = (self.applied + count).min(self.log.len());
        // The slot repeats the last applied transaction.
        let from = self.applied.saturating_sub(1);
        let transaction = |i: usize| StreamTransaction { commit_lsn: lsn(i), ops: self.log[i].clone() };
        let transactions = (from..until).map(transaction).collect();
        let mut expected = Effects::default();
        for ops in &self.log[self.applied..until] {
            let effects = self.model.apply(ops);
            expected.finished.extend(effects.finished);
            expected.unlocked.extend(effects.unlocked);
            expected.modified.extend(effects.modified);
        }
        self.replica.apply(batch(SOURCE, transactions, lsn(until)));
        assert_eq!(self.replica.effects, expected);
        self.applied = until;
        self.served = if self.applied >= self.served { 0 } else { self.served };
    }

    fn begin_rebuild(&mut self, raise: u64) {
        self.epoch += raise.max(1);
        self.replica.begin(self.epoch, false);
        self.model.epoch = self.epoch;
        let mut unlocked: Vec<_> = self.model.locks.drain(..).map(|lock| (lock.request, lock.attempt)).collect();
        unlocked.sort();
        assert_eq!(self.replica.effects.finished, []);
        assert_eq!(self.replica.effects.unlocked, unlocked);
        self.rebuild = Some(Copied { rows: self.postgres.rows.clone(), next: self.log.len() });
        let mut records: Vec<_> = self.postgres.rows.values().rev().cloned().collect();
        while !records.is_empty() {
            let rest = records.split_off(records.len().min(5));
            self.replica.apply(Command::RebuildChunk { records });
            records = rest;
        }
    }

    fn end_rebuild(&mut self) {
        let Some(copied) = self.rebuild.take() else { return };
        self.replica.end(lsn(copied.next));
        self.model.rows = copied.rows;
        self.served = if self.applied.max(self.served) > copied.next { self.applied.max(self.served) } else { 0 };
        self.applied = copied.next;
    }
}

proptest! {
    #![proptest_config(runs(400))]

    #[test]
    fn the_index_answers_as_the_model_and_no_cycle_arises(steps in proptest::collection::vec(step(), 1..150)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step);
        }
        world.run(&Step::End);
        world.deliver(world.log.len());
        world.set_refusal();
        let tree = world.replica.index.serving.as_ref().unwrap();
        let rows: BTreeMap<_, _> = tree.table.records().map(|(r, _)| (r.id.0, (r.pid, r.name.to_owned(), r.version))).collect();
        let expected = world.postgres.rows.values().map(|r| (r.id.0, (r.pid, r.name.clone(), r.version))).collect();
        prop_assert_eq!(rows, expected);
    }
}
