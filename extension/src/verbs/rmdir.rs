//! `mantle.rmdir`: its fast path, for empty directories that the caller may remove.
//!
//! Invariant (P11): it looks into each directory before it latches, and again under the exclusive latch. What it does not
//! remove is left to `mantle.rmdir_fallback`, which finds the reason, or the earlier answer. On Citus that does everything.

use std::collections::HashSet;

use mantle_types::{limits::ID_MIN, message::DirectoryOp, name::check_name, verbs::rmdir};
use pgrx::{pg_sys, prelude::*};

use super::elements::{all, fallback_types, texts, values as column};
use crate::{
    citus::shards::is_distributed,
    postgres::{
        call::{Arguments, call_function, call_step, nullable},
        function::{Done, answer_rows, c_function, raise},
        probe::Probe,
        row::{Row, value},
        writer::{TupleCopy, Writer},
    },
    steps::{
        access::{caller_of, known, recorded},
        answers::{Answers, Request},
        batch::shape_error,
        change_stream::{cause, emit, record},
        counts::Delta,
        key::entry_key,
        lease::{self, namespace_of},
        removal::queue_pruning,
        request_age::is_fresh,
    },
};

const INT8: pg_sys::Oid = pg_sys::INT8OID;
const INT8S: pg_sys::Oid = pg_sys::INT8ARRAYOID;

/// The verb's arguments, the numbers of the elements removed here, and the directories that were empty before the latches.
const FALLBACK_TYPES: [pg_sys::Oid; rmdir::COUNT + 2] = fallback_types(&rmdir::VERB, INT8S);

c_function!(mantle_rmdir, pg_finfo_mantle_rmdir, run);

/// An element without forbidden NULLs.
struct Element<'a> {
    /// From 1.
    number: i32,
    principal: i32,
    ns: i64,
    pid: i64,
    name: &'a str,
    id: i64,
    request: pgrx::Uuid,
    hash: i64,
    lease: Option<&'a str>,
    caller: Option<&'a str>,
    parent: Option<&'a str>,
}

/// The entry of a directory that may be removed.
struct Found {
    row: TupleCopy,
    version: i64,
    permission: [i32; 3],
}

/// The tables that a removal writes to.
struct Tables {
    meta: Writer,
    answers: Answers,
}

fn run(call: &Arguments) -> Done {
    let fall_back = |removed: Option<Vec<i32>>, empty: Option<Vec<i64>>| {
        Done::Call(call.pass_to(
            c"rmdir_fallback",
            &FALLBACK_TYPES,
            &[nullable(value(removed)), nullable(value(empty))],
        ))
    };
    let Some((empty, ids)) = latch(call) else { return fall_back(None, None) };
    let Some(removed) = remove(call, &empty) else { return fall_back(Some(Vec::new()), Some(empty)) };
    if removed.len() < ids.len() {
        return fall_back(Some(removed), Some(empty));
    }
    match call_step(c"placement_fault", &[INT8S], &[call.raw(rmdir::PID.place())]) {
        Some(fault) => raise(&fault),
        None => answer_rows(
            call,
            removed.into_iter().map(|number| vec![value(number), None, value(ids[number as usize - 1]), value(false)]),
        ),
    }
}

/// Looks into the directories and latches (P7, P11). The directories that were empty, and all. `None`: the fallback begins anew.
fn latch(call: &Arguments) -> Option<(Vec<i64>, Vec<Option<i64>>)> {
    // Before any read of a catalog.
    if call_step(c"mutation_fault_code", &[], &[]).is_some() || is_distributed() {
        return None;
    }
    let (names, ids) = (texts(call, rmdir::NAME)?, column(call, rmdir::ID)?);
    shape_error(names.len(), std::iter::once(ids.len())).is_none().then_some(())?;
    let mut empty: Vec<i64> = ids.iter().flatten().copied().collect();
    empty.sort_unstable();
    empty.dedup();
    empty.retain(|id| is_empty(*id));
    let types = [INT8S, pg_sys::TEXTARRAYOID, INT8S];
    let exclusive = nullable(value(empty.clone()));
    let arguments = [call.raw(rmdir::PID.place()), call.raw(rmdir::NAME.place()), exclusive];
    call_step(c"latch_entries", &types, &arguments).is_none().then_some((empty, ids))
}

fn is_empty(id: i64) -> bool {
    let answer = call_function(c"is_empty", &[INT8], &[nullable(value(id))]);
    // SAFETY: the function answers a boolean.
    answer.and_then(|answer| unsafe { bool::from_datum(answer, false) }) == Some(true)
}

/// Removes what passes every check; returns the numbers of these elements. `None` if the arrays do not fit.
fn remove(call: &Arguments, empty: &[i64]) -> Option<Vec<i32>> {
    let (name, lease) = (texts(call, rmdir::NAME)?, texts(call, rmdir::LEASE));
    let (caller, parent) = (texts(call, rmdir::CALLER), texts(call, rmdir::PARENT));
    let (principal, ns, pid) = (column(call, rmdir::PRINCIPAL)?, column(call, rmdir::NS)?, column(call, rmdir::PID)?);
    let (id, request, hash) = (column(call, rmdir::ID)?, column(call, rmdir::REQUEST)?, column(call, rmdir::HASH)?);
    let optional = [&lease, &caller, &parent].into_iter().flatten().map(|texts| texts.len());
    let lengths = [principal.len(), ns.len(), pid.len(), id.len(), request.len(), hash.len()];
    shape_error(name.len(), lengths.into_iter().chain(optional)).is_none().then_some(())?;
    let names = Some(name);
    let (name, lease, caller, parent) = (all(&names), all(&lease), all(&caller), all(&parent));
    let element = |at: usize| {
        let element = Element {
            number: at as i32 + 1,
            principal: principal[at]?,
            ns: ns[at]?,
            pid: pid[at].filter(|pid| *pid >= ID_MIN)?,
            name: name[at]?,
            id: id[at]?,
            request: request[at]?,
            hash: hash[at].unwrap_or(0),
            lease: lease.get(at).copied().flatten(),
            caller: caller.get(at).copied().flatten(),
            parent: parent.get(at).copied().flatten(),
        };
        Some(element)
    };
    let mut elements: Vec<_> = (0..name.len()).filter_map(element).collect();
    elements.sort_by_key(|e| (e.pid, e.name, e.number));
    Some(Spi::connect_mut(|_| remove_all(&elements, empty)))
}

fn remove_all(elements: &[Element<'_>], empty: &[i64]) -> Vec<i32> {
    let mut tables = Tables { meta: Writer::open(c"meta"), answers: Answers::open(c"requests") };
    // The table's lock may have been a wait for its distribution.
    if is_distributed() {
        return Vec::new();
    }
    let mut probe = tables.meta.probe(entry_key(0, "").len());
    let (mut removed, mut gone, mut ops) = (Vec::new(), HashSet::new(), Vec::new());
    let mut deltas: Vec<(i64, Delta)> = Vec::new();
    for e in elements {
        // The probe does not see what this call has removed.
        if empty.binary_search(&e.id).is_err() || gone.contains(&e.id) {
            continue;
        }
        let Some(found) = e.find(&mut probe) else { continue };
        if !is_empty(e.id) || !e.record(&mut tables.answers, found.version + 1) {
            continue;
        }
        tables.meta.delete(&found.row);
        queue_pruning(&tables.meta, e.pid);
        call_function(c"write_tombstone", &[INT8, INT8], &[e.ns, e.id].map(|of| nullable(value(of))));
        gone.insert(e.id);
        removed.push(e.number);
        match deltas.last_mut() {
            Some((pid, delta)) if *pid == e.pid => {
                delta.entries -= 1;
                delta.subdirectories -= 1;
            }
            _ => deltas.push((e.pid, Delta { ns: e.ns, entries: -1, subdirectories: -1, bytes: 0 })),
        }
        let record = record(e.ns, e.pid, e.name, e.id, found.version + 1, found.permission);
        ops.push(DirectoryOp::Remove { record, cause: Some(cause(e.principal, e.ns, &e.request, 0)) });
    }
    drop(probe);
    // In the order of the directories, as the elements are.
    for (pid, delta) in deltas {
        delta.add_to(pid, Some(&mut tables.meta));
    }
    emit(&ops);
    removed
}

impl Element<'_> {
    /// The directory's entry, if everything allows its removal. It is not known yet whether the directory is empty.
    fn find(&self, meta: &mut Probe) -> Option<Found> {
        let is_name = self.name.strip_suffix('/').is_some_and(|stem| check_name(stem).is_ok());
        if !is_name || !is_fresh(&self.request) {
            return None;
        }
        let namespace = namespace_of(self.ns)?;
        lease::check(self.lease, namespace.epoch).ok()?;
        let caller = caller_of(self.principal, self.caller).ok()?;
        let changed = meta.find(&entry_key(self.pid, "/_ATTR"), recorded).flatten();
        let directory = changed.map_or_else(|| known(self.parent).ok(), Some)?;
        let read = |row: &Row| {
            let is_it = row.named::<i64>(c"id") == Some(self.id)
                && row.named::<i64>(c"ns") == Some(self.ns)
                && row.named::<bool>(c"explicit").is_some();
            is_it.then_some(())?;
            let [owner, grp, mode] = [c"owner", c"grp", c"mode"].map(|column| row.named::<i32>(column));
            let (version, permission) = (row.named(c"version")?, [owner?, grp?, mode?]);
            Some(Found { row: TupleCopy::of(row), version, permission })
        };
        let found = meta.find(&entry_key(self.pid, self.name), read).flatten()?;
        let is_allowed = directory.may_create(&caller) && directory.may_remove(&caller, found.permission[0] as u32);
        is_allowed.then_some(found)
    }

    /// Records the answer (P19); `false` if there is one.
    fn record(&self, answers: &mut Answers, version: i64) -> bool {
        let Element { ns, principal, request: id, hash, .. } = *self;
        let request = Request { ns, principal, id, hash };
        answers.record(&request, "rmdir", [self.pid, self.id, version])
    }
}
