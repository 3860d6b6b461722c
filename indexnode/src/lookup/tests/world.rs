//! An index with a cache, changed by one writer and read by many, beside a model of every state that it had.
//!
//! A lookup may answer as of any state that the index had between the begin and the end of the lookup. It may not answer as of
//! a state older than one that an earlier lookup, finished before this one began, must have seen. With one writer this is
//! linearizability.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures::executor::block_on;
use mantle_types::{Caller, DirectoryId, Lsn, NamespaceId, PartitionId, Permission, message::DirectoryRecord};
use parking_lot::{Mutex, RwLock};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use crate::{
    index::{
        Effects, Index, LogEntry, Path, Resolution,
        command::{Command, Prepare, StreamTransaction},
        tests::{NS, SOURCE, batch, caused, key, model::Model, put, record, remove, start},
    },
    lookup::{LookupSettings, NewPrefixes, PathCache, PathQuery, invalidator::Rules},
};

/// Few names, so that another directory soon takes a place that one left.
const NAMES: usize = 3;
/// About how many directories exist at once.
const DIRECTORIES: usize = 14;
const DEEPEST: usize = 7;

/// Settings of the tests: the cached prefix ends one level above the path.
pub fn settings() -> LookupSettings {
    LookupSettings { cache_levels: 1, ..LookupSettings::default() }
}

/// A lookup whose answer no state allows.
#[derive(Debug)]
#[allow(dead_code, reason = "read by a failing test's message")]
pub struct Wrong {
    path: Vec<String>,
    uid: u32,
    answer: Resolution,
    right: Vec<Resolution>,
}

/// The index, its cache, and its past states.
pub struct World {
    pub index: RwLock<Index>,
    pub cache: PathCache,
    /// States by number. A state is added before the index begins to reach it.
    states: RwLock<Vec<Arc<Model>>>,
    /// Number of a state that the index has certainly reached.
    reached: AtomicUsize,
    /// Highest number of a state that a finished lookup must have seen.
    seen: AtomicUsize,
    /// The first wrong answer to a lookup right after a change was published.
    pub wrong: Mutex<Option<Box<Wrong>>>,
}

pub struct Writer {
    random: StdRng,
    log_index: u64,
    next_id: u64,
    next_key: u128,
    lsn: u64,
    /// A prepared rename: the source, its destination, the request and the attempt.
    prepared: Option<(DirectoryRecord, DirectoryRecord, u128, u64)>,
}

/// An answered lookup, with prefixes to cache.
pub struct Answered {
    pub found: NewPrefixes,
    pub outcome: Result<(), Box<Wrong>>,
}

fn some_permission(random: &mut StdRng) -> Permission {
    let mode = *[0o755, 0o755, 0o700, 0o711].choose(random).unwrap_or(&0o755);
    Permission { owner: random.random_range(7..9), group: 7, mode }
}

fn some_caller(random: &mut StdRng) -> Caller {
    Caller { uid: *[0, 7, 8, 9].choose(random).unwrap_or(&0), gids: vec![] }
}

impl World {
    pub fn new(rules: Rules) -> Self {
        let mut index = Index::default();
        let mut effects = Effects::default();
        let root = record(0, "ns", NS.0, 1);
        let begin = Command::RebuildBegin { epoch: mantle_types::Epoch(1), is_diverged: false };
        let end = Command::RebuildEnd { sources: vec![start(SOURCE, Lsn(1))] };
        for (at, command) in [begin, Command::RebuildChunk { records: vec![root.clone()] }, end].into_iter().enumerate()
        {
            index.apply(at as u64 + 1, command, &mut effects);
        }
        let mut model = Model { epoch: 1, ..Model::default() };
        model.rows.insert(NS.0, root);
        Self {
            index: RwLock::new(index),
            cache: PathCache::with_rules(settings(), rules),
            states: RwLock::new(vec![Arc::new(model)]),
            reached: AtomicUsize::new(0),
            seen: AtomicUsize::new(0),
            wrong: Mutex::default(),
        }
    }

    /// An empty cache takes no bytes: the counts return to zero.
    pub fn check_size(&self) {
        self.cache.invalidate(&[EVERYTHING]);
        self.cache.purge();
        assert_eq!(self.cache.size(), (0, 0));
    }

    fn latest(&self) -> Arc<Model> {
        self.states.read().last().expect("the first state is always there").clone()
    }

    /// One to four checked lookups of random paths under one guard. Their prefixes are not cached yet.
    pub fn look_up(&self, random: &mut StdRng) -> Answered {
        let caller = some_caller(random);
        let latest = self.latest();
        let paths: Vec<Vec<String>> = (0..random.random_range(1..5)).map(|_| some_path(&latest, random)).collect();
        let joined: Vec<String> = paths.iter().map(|path| path.join("/")).collect();
        let query = |path| PathQuery { namespace: "ns", path: Path(path), caller: &caller };
        let queries: Vec<_> = joined.iter().map(|path| query(path)).collect();
        let from = self.reached.load(Ordering::SeqCst).max(self.seen.load(Ordering::SeqCst));
        let mut answers = Vec::new();
        let found = {
            let index = self.index.read();
            let mut lookups = self.cache.begin(&index);
            lookups.resolve_all(&queries, |answer| answers.push(answer));
            lookups.end()
        };
        assert_eq!(answers.len(), paths.len());
        let states: Vec<_> = self.states.read()[from..].to_vec();
        let outcome = paths.into_iter().zip(answers).try_for_each(|(path, answer)| {
            let right = |state: &Arc<Model>| state.resolve(&path, &caller).expect("the model always serves");
            match states.iter().position(|state| right(state) == answer) {
                Some(at) => {
                    self.seen.fetch_max(from + at, Ordering::SeqCst);
                    Ok(())
                }
                None => {
                    let right = states.iter().map(right).collect();
                    Err(Box::new(Wrong { path, uid: caller.uid, answer, right }))
                }
            }
        });
        Answered { found, outcome }
    }
}

/// The path of a directory, or one that continues below it, or one with a missing component.
fn some_path(model: &Model, random: &mut StdRng) -> Vec<String> {
    let ids: Vec<u64> = model.rows.keys().copied().collect();
    let mut path = model.path(*ids.choose(random).expect("the root is there"));
    for _ in 0..random.random_range(0..3) {
        path.push(format!("n{}", random.random_range(0..NAMES)));
    }
    if !path.is_empty() && random.random_ratio(1, 8) {
        let at = random.random_range(0..path.len());
        path[at] = format!("n{}", random.random_range(0..NAMES));
    }
    path
}

impl Writer {
    pub fn new(seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        Self { random, log_index: 3, next_id: 100, next_key: 1, lsn: 10, prepared: None }
    }

    /// One random change; sometimes there is nothing to change.
    pub fn change(&mut self, world: &World) {
        let model = world.latest();
        if let Some((from, to, request, attempt)) = self.prepared.take() {
            return match self.random.random_range(0..3) {
                0 => self.commit(world, vec![caused(put(to), key(request), attempt)]),
                1 => self.apply(world, Command::Release { request: key(request), attempt }, |model| {
                    model.locks.clear();
                }),
                _ => self.prepared = Some((from, to, request, attempt)),
            };
        }
        let ids: Vec<u64> = model.rows.keys().copied().filter(|id| *id != NS.0).collect();
        let one = ids.choose(&mut self.random).map(|id| model.rows[id].clone());
        let kind = if ids.len() < DIRECTORIES / 2 { 0 } else { self.random.random_range(0..8) };
        match (kind, one) {
            (0..=1, _) => self.make(world, &model),
            (2, Some(one)) if !model.rows.values().any(|r| r.pid.0 == one.id.0) => {
                let version = one.version + 1;
                self.commit(world, vec![remove(DirectoryRecord { version, ..one })]);
            }
            (3..=4, Some(one)) => {
                let (permission, version) = (some_permission(&mut self.random), one.version + 1);
                self.commit(world, vec![put(DirectoryRecord { permission, version, ..one })]);
            }
            (5..=6, Some(one)) => {
                if let Some(to) = self.destination(&model, &one) {
                    self.commit(world, vec![put(to)]);
                }
            }
            (7, Some(one)) => self.prepare(world, &model, one),
            _ => {}
        }
    }

    fn make(&mut self, world: &World, model: &Model) {
        let parents: Vec<u64> = model.rows.keys().copied().filter(|id| model.chain(*id).len() < DEEPEST).collect();
        let parent = *parents.choose(&mut self.random).expect("the root is not deep");
        let name = format!("n{}", self.random.random_range(0..NAMES));
        if model.rows.len() > DIRECTORIES || model.at(parent, &name).is_some() {
            return;
        }
        self.next_id += 1;
        let permission = some_permission(&mut self.random);
        self.commit(world, vec![put(DirectoryRecord { permission, ..record(parent, &name, self.next_id, 1) })]);
    }

    /// A free place to which a directory can move, not below itself.
    fn destination(&mut self, model: &Model, one: &DirectoryRecord) -> Option<DirectoryRecord> {
        let parents: Vec<u64> = model.rows.keys().copied().filter(|id| !model.chain(*id).contains(&one.id.0)).collect();
        let parent = *parents.choose(&mut self.random)?;
        let name = format!("n{}", self.random.random_range(0..NAMES));
        let is_free = model.at(parent, &name).is_none() && model.chain(parent).len() < DEEPEST;
        let to = DirectoryRecord { pid: PartitionId(parent), name, version: one.version + 1, ..one.clone() };
        is_free.then_some(to)
    }

    fn prepare(&mut self, world: &World, model: &Model, one: DirectoryRecord) {
        let Some(to) = self.destination(model, &one) else { return };
        let mut destination = model.path(to.pid.0);
        destination.push(to.name.clone());
        self.next_key += 1;
        let prepare = Prepare {
            request: mantle_types::RequestKey { ns: NamespaceId(0), ..key(self.next_key) },
            namespace: "ns".into(),
            source: model.path(one.id.0),
            destination,
            caller: Caller { uid: 0, gids: vec![] },
            overwrite: false,
            remove: false,
            lock_ms: 1000,
        };
        let attempt = self.log_index + 1;
        let mut answer = None;
        self.apply(world, Command::Prepare(prepare.clone()), |model| answer = model.prepare(attempt, 0, &prepare).ok());
        if answer.is_some() {
            self.prepared = Some((one, to, self.next_key, attempt));
        }
    }

    fn commit(&mut self, world: &World, ops: Vec<mantle_types::message::DirectoryOp>) {
        self.lsn += 1;
        let transactions = vec![StreamTransaction { commit_lsn: Lsn(self.lsn), ops: ops.clone() }];
        let command = batch(SOURCE, transactions, Lsn(self.lsn + 1));
        self.apply(world, command, |model| {
            model.apply(&ops);
        });
    }

    fn apply(&mut self, world: &World, command: Command, on_model: impl FnOnce(&mut Model)) {
        let mut next = (*world.latest()).clone();
        on_model(&mut next);
        world.states.write().push(Arc::new(next));
        self.log_index += 1;
        let entry = LogEntry::new(self.log_index, command);
        let publish = |_, _| {
            world.reached.fetch_add(1, Ordering::SeqCst);
            // A lookup from now on must see the change.
            if let Err(e) = world.look_up(&mut self.random).outcome {
                world.wrong.lock().get_or_insert(e);
            }
        };
        block_on(world.cache.apply(&world.index, |index| index, entry, 1, publish));
    }
}

/// The ancestor of every directory.
pub const EVERYTHING: DirectoryId = DirectoryId::SUPER_ROOT;
