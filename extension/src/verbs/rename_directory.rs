//! `mantle.rename_directory` for one directory: its fast path, for a rename to a free place.
//!
//! It makes the checks of `sql/verbs/rename_directory.sql` without plpgsql or SPI, which cost several times as much as the
//! rows. If a check fails, it has written nothing, and the SQL function starts anew under the same latches: it finds the
//! reason, or the earlier answer. So does a rename that replaces a directory, and every rename on Citus, where the
//! namespace's root has the request's record and is mostly on another node.

use std::iter::zip;

use mantle_types::{Caller, Permission, limits::ID_MIN, message::DirectoryOp, name::check_name};
use pgrx::{pg_sys, prelude::*};

use crate::{
    citus::shards::is_distributed,
    postgres::{
        call::{Arguments, call_step, nullable},
        clock::now,
        function::{Done, answer_row, c_function, raise},
        probe::{Key, Probe, Table},
        row::{Row, value, values},
        writer::{TupleCopy, Writer},
    },
    steps::{
        access::{caller_of, known, recorded},
        answers::{Answers, Request},
        change_stream::{cause, emit, record},
        counts::{Delta, Seen},
        key::entry_key,
        lease::{self, namespace_of},
        proof::is_proven,
        removal::queue_pruning,
        request_age::is_fresh,
    },
};

const FALLBACK_TYPES: [pg_sys::Oid; 18] = [
    pg_sys::INT4OID,
    pg_sys::INT8OID,
    pg_sys::INT8OID,
    pg_sys::TEXTOID,
    pg_sys::INT8OID,
    pg_sys::INT8OID,
    pg_sys::TEXTOID,
    pg_sys::INT8OID,
    pg_sys::INT4OID,
    pg_sys::INT8OID,
    pg_sys::INT8OID,
    pg_sys::UUIDOID,
    pg_sys::INT8OID,
    pg_sys::TEXTOID,
    pg_sys::TEXTOID,
    pg_sys::BYTEAOID,
    pg_sys::TEXTOID,
    pg_sys::TEXTOID,
];

c_function!(mantle_rename_directory, pg_finfo_mantle_rename_directory, run);

/// A rename without forbidden NULLs.
struct Rename<'a> {
    principal: i32,
    ns: i64,
    source: (i64, &'a str),
    id: i64,
    destination: (i64, &'a str),
    index_group: i32,
    epoch: i64,
    attempt: i64,
    request: pgrx::Uuid,
    hash: i64,
    lease: Option<&'a str>,
    caller: Caller,
    proof: Option<&'a [u8]>,
    /// The permissions of both parents when the index prepared the rename; `None`: an index of an older release.
    parents: [Option<Permission>; 2],
}

/// The directory to be moved.
struct Found {
    row: TupleCopy,
    version: i64,
    owner: i32,
    grp: i32,
    mode: i32,
    /// The attribute records of the source and the destination.
    counts: [Seen; 2],
}

fn run(call: &Arguments) -> Done {
    let Some((rename, version)) = fast_path(call) else {
        return Done::Call(call.pass_to(c"rename_directory_fallback", &FALLBACK_TYPES, &[]));
    };
    let pids = nullable(value(vec![rename.source.0, rename.destination.0]));
    match call_step(c"placement_fault", &[pg_sys::INT8ARRAYOID], &[pids]) {
        Some(fault) => raise(&fault),
        None => answer_row(call, &values![None::<&str>, rename.id, version, false, None::<i64>]),
    }
}

/// The rename that it has carried out, and the directory's new version. `None`: nothing is written.
fn fast_path(call: &Arguments) -> Option<(Rename<'_>, i64)> {
    // Before any read of a catalog.
    if call_step(c"mutation_fault_code", &[], &[]).is_some() {
        return None;
    }
    let rename = Rename::of(call).filter(|_| !is_distributed())?;
    rename.latch().then_some(())?;
    let version = Spi::connect_mut(|_| rename.carry_out())?;
    Some((rename, version))
}

impl<'a> Rename<'a> {
    /// `None`: something is missing, or wrong in itself.
    fn of(call: &'a Arguments) -> Option<Self> {
        let (source, destination): (i64, i64) = (call.get(2)?, call.get(5)?);
        let (source_name, destination_name): (&str, &str) = (call.get(3)?, call.get(6)?);
        let replaced: i64 = call.get(7)?;
        let (principal, caller) = (call.get(0)?, call.get::<&str>(14));
        let parent = |at| call.get::<&str>(at).map(|text| known(Some(text))).transpose().ok();
        let rename = Self {
            principal,
            ns: call.get(1)?,
            source: (source, source_name),
            id: call.get(4)?,
            destination: (destination, destination_name),
            index_group: call.get(8)?,
            epoch: call.get(9)?,
            attempt: call.get(10)?,
            request: call.get(11)?,
            hash: call.get(12).unwrap_or(0),
            lease: call.get(13),
            caller: caller_of(principal, caller).ok()?,
            proof: call.get(15),
            parents: [parent(16)?, parent(17)?],
        };
        let is_name = |name: &str| name.strip_suffix('/').is_some_and(|stem| check_name(stem).is_ok());
        let is_whole = replaced == 0
            && source >= ID_MIN
            && destination >= ID_MIN
            && rename.id != destination
            && is_name(source_name)
            && is_name(destination_name)
            && is_fresh(&rename.request);
        is_whole.then_some(rename)
    }

    /// Latches the epoch, then the places (P7, P21). `false`: the fallback learns of the same fault.
    fn latch(&self) -> bool {
        let epoch = [nullable(value(self.index_group)), nullable(value(false))];
        if call_step(c"latch_epoch", &[pg_sys::INT4OID, pg_sys::BOOLOID], &epoch).is_some() {
            return false;
        }
        let pids = value(vec![self.source.0, self.destination.0]);
        let names = value(vec![self.source.1, self.destination.1]);
        let types = [pg_sys::INT8ARRAYOID, pg_sys::TEXTARRAYOID, pg_sys::INT8ARRAYOID];
        call_step(c"latch_entries", &types, &[pids, names, None].map(nullable)).is_none()
    }

    /// Checks everything, then moves the directory. Answers its new version.
    fn carry_out(&self) -> Option<i64> {
        let mut meta = Writer::open(c"meta");
        // The table's lock may have been a wait for its distribution. From here on nobody distributes it.
        if is_distributed() || !self.is_granted() {
            return None;
        }
        let found = self.find(&mut meta.probe(entry_key(0, "").len()))?;
        let version = found.version + 1;
        self.record(version).then_some(())?;
        self.move_entry(&mut meta, &found);
        self.count(&mut meta, found.counts);
        let (pid, name) = self.destination;
        let record = record(self.ns, pid, name, self.id, version, [found.owner, found.grp, found.mode]);
        emit(&[DirectoryOp::Put { record, cause: Some(cause(self.principal, self.ns, &self.request, self.attempt)) }]);
        Some(version)
    }

    /// Whether the index has prepared the rename under the epoch that holds (P21, P31), and the lease holds (P8).
    fn is_granted(&self) -> bool {
        let is_current = |epoch| epoch == self.epoch as u64 && lease::check(self.lease, epoch).is_ok();
        let is_served = namespace_of(self.ns)
            .is_some_and(|namespace| namespace.index_group == self.index_group && is_current(namespace.epoch));
        let key = |row: &Row| row.named::<Vec<u8>>(c"key");
        // A group without a key does not sign yet.
        is_served
            && match Table::open(c"prepare_keys").find(&[Key::int4(1, self.index_group)], key).flatten() {
                Some(key) => self.proof.is_some_and(|proof| {
                    let (source, destination) = (self.source, self.destination);
                    is_proven(
                        &key,
                        proof,
                        self.index_group,
                        self.epoch,
                        self.attempt,
                        self.principal,
                        self.ns,
                        self.request,
                        source.0,
                        source.1,
                        self.id,
                        destination.0,
                        destination.1,
                        0,
                    )
                }),
                None => true,
            }
    }

    /// The directory, if it is the one that the index has locked, its destination is free, and the caller may move it (P56).
    fn find(&self, meta: &mut Probe) -> Option<Found> {
        let ((source, name), (destination, new_name)) = (self.source, self.destination);
        let is_locked_one = |row: &Row| {
            row.named::<i64>(c"id") == Some(self.id)
                && row.named::<i64>(c"ns") == Some(self.ns)
                && row.named::<bool>(c"explicit").is_some()
        };
        let read = |row: &Row| {
            is_locked_one(row).then_some(())?;
            let [owner, grp, mode] = [c"owner", c"grp", c"mode"].map(|column| row.named::<i32>(column));
            let (version, owner, grp, mode) = (row.named(c"version")?, owner?, grp?, mode?);
            Some(Found { row: TupleCopy::of(row), version, owner, grp, mode, counts: [None, None] })
        };
        let mut found = meta.find(&entry_key(source, name), read).flatten()?;
        let stem = new_name.strip_suffix('/')?;
        if [new_name, stem].into_iter().any(|name| meta.find(&entry_key(destination, name), |_| ()).is_some()) {
            return None;
        }
        let entry = Permission { owner: found.owner as u32, group: found.grp as u32, mode: found.mode as u16 };
        // The index has checked the same when it prepared; what was changed since is here.
        let (_, from, of_source) = attributes(meta, source);
        let (is_removed, into, of_destination) = attributes(meta, destination);
        found.counts = [of_source, of_destination];
        let (caller, [known_from, known_into]) = (&self.caller, self.parents);
        let (from, into) = (from.or(known_from), into.or(known_into));
        let is_allowed = from.is_none_or(|from| from.may_create(caller) && from.may_remove(caller, entry.owner))
            && into.is_none_or(|into| into.may_create(caller))
            && (source == destination || entry.may_describe(caller));
        (!is_removed && is_allowed).then_some(found)
    }

    /// Records the attempt (P20) and the answer (P19). `false`, and nothing recorded, if there is a record of either.
    fn record(&self, version: i64) -> bool {
        let Self { ns, principal, request: id, hash, .. } = *self;
        let request = Request { ns, principal, id, hash };
        let (mut attempts, mut answers) = (Writer::open(c"rename_attempts"), Answers::open(c"requests"));
        let known = attempts.find_all(&request.key(), |row| row.named::<i64>(c"attempt"));
        let is_superseded = known.into_iter().flatten().any(|attempt| attempt >= self.attempt);
        if is_superseded {
            return false;
        }
        let columns = attempts.columns([c"ns", c"principal", c"request_id", c"attempt", c"state", c"created"]);
        // This waits for an abort of the attempt.
        if !attempts.insert_if_free(zip(columns, values![ns, principal, id, self.attempt, "committed", now()])) {
            return false;
        }
        if answers.record(&request, "rename_directory", [ns, self.id, version]) {
            return true;
        }
        // Another attempt of the request was carried out. This one is not.
        let [ns, principal, request] = request.key();
        let own = [ns, principal, request, Key::int8(4, self.attempt)];
        if let Some(row) = attempts.find(&own, TupleCopy::of) {
            attempts.delete(&row);
        }
        false
    }

    fn move_entry(&self, meta: &mut Writer, found: &Found) {
        let (pid, name) = self.destination;
        let columns = meta.columns([c"pid", c"name", c"version"]);
        // The SQL function deletes a row and inserts another, because they may be on two nodes.
        meta.update(&found.row, zip(columns, values![pid, name, found.version + 1]));
        // A directory in which an entry only got another name is not empty (P17).
        if self.source.0 != pid {
            queue_pruning(meta, self.source.0);
        }
    }

    /// Counts in the order of the directories: with `mantle.delta_records = never` two opposite moves would deadlock. A rename
    /// within a directory changes no count, but when the directory was modified.
    fn count(&self, meta: &mut Writer, [of_source, of_destination]: [Seen; 2]) {
        let (source, destination) = (self.source.0, self.destination.0);
        let by = |entries| Delta { ns: self.ns, entries, subdirectories: entries, bytes: 0 };
        let mut deltas = vec![(source, by(-1), of_source), (destination, by(1), of_destination)];
        if source == destination {
            deltas.truncate(1);
            deltas[0].1 = by(0);
        }
        deltas.sort_by_key(|(pid, ..)| *pid);
        for (pid, delta, seen) in deltas {
            delta.add_to_seen(pid, meta, seen);
        }
    }
}

/// Whether a directory has a tombstone (P16), its permission if that was ever changed, and its attribute record.
fn attributes(meta: &mut Probe, pid: i64) -> (bool, Option<Permission>, Seen) {
    let read = |row: &Row| (row.named::<bool>(c"removed") == Some(true), recorded(row), TupleCopy::of(row));
    match meta.find_counting(&entry_key(pid, "/_ATTR"), read) {
        Some(((is_removed, changed, record), old_chains)) => (is_removed, changed, Some((record, old_chains))),
        None => (false, None, None),
    }
}
