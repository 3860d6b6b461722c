//! Fast path of mkdir and put_object: inserts entries that pass every check; everything else falls back to SQL.
//!
//! It handles the elements one after the other. An element that exists, is refused or was answered before is left to
//! the fallback (`sql/verbs/mkdir.sql`, `put_object.sql`), which finds the reason. The caller has taken the latches
//! (`entry.rs`), so what is read of a name stays true until the commit.

use std::collections::{BTreeMap, HashMap, HashSet, hash_map::Entry};

use mantle_types::{Permission, name::check_name};

use super::{elements::Element, tables::Tables};
use crate::{
    postgres::{probe::Probe, row::Row, writer::TupleCopy},
    steps::{
        access::{caller_of, known, recorded},
        counts::{Delta, Seen, add},
        id_blocks::is_recorded,
        key::entry_key,
        lease::{self, Namespace, recent_namespace_of},
        request_age::is_fresh,
    },
};

/// What a call has read and done so far.
#[derive(Default)]
pub struct Batch<'a> {
    /// Namespaces that exist.
    namespaces: HashMap<i64, Namespace>,
    /// Directories without a tombstone, and their permissions that were changed (P56). The latch keeps both as they are.
    live: HashMap<i64, Option<Permission>>,
    /// The entries made, by directory and name without slash.
    entries: HashSet<(i64, &'a str)>,
    /// The numbers of the elements made, from 1.
    pub made: Vec<i32>,
    pub deltas: BTreeMap<i64, Delta>,
    /// The attribute records of directories that have one.
    pub records: HashMap<i64, Seen>,
}

/// What a fast path has done.
pub struct Made {
    /// The numbers of the elements made, from 1.
    pub numbers: Vec<i32>,
    /// The modes of all elements, less what their namespaces take away.
    pub modes: Vec<Option<i32>>,
}

impl<'a> Batch<'a> {
    /// Checks the name, the id, the namespace, the lease and the age of the request id.
    fn is_valid(&mut self, element: &Element<'_>) -> bool {
        if check_name(element.stem()).is_err() || !is_recorded(element.id) || !is_fresh(&element.request) {
            return false;
        }
        self.namespace(element.ns).is_some_and(|namespace| lease::check(element.lease, namespace.epoch).is_ok())
    }

    fn namespace(&mut self, ns: i64) -> Option<Namespace> {
        match self.namespaces.entry(ns) {
            Entry::Occupied(known) => Some(*known.get()),
            Entry::Vacant(unknown) => recent_namespace_of(ns).map(|found| *unknown.insert(found)),
        }
    }

    /// The mode bits that nothing new gets in a namespace; none where there is no namespace, and so nothing is made.
    pub fn umask_of(&mut self, ns: i64) -> i32 {
        self.namespace(ns).map_or(0, |namespace| namespace.umask)
    }

    /// Whether the caller may make entries in the directory, which has no tombstone (P16, P56).
    fn is_open(&mut self, meta: &mut Probe, element: &Element<'_>) -> bool {
        let changed = match self.live.entry(element.pid) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(unknown) => {
                let read = |row: &_| (Row::named::<bool>(row, c"removed"), recorded(row), TupleCopy::of(row));
                match meta.find_counting(&entry_key(element.pid, "/_ATTR"), read) {
                    Some(((Some(true), ..), _)) => return false,
                    Some(((_, changed, record), old_chains)) => {
                        self.records.insert(element.pid, Some((record, old_chains)));
                        *unknown.insert(changed)
                    }
                    None => *unknown.insert(None),
                }
            }
        };
        let directory = changed.map_or_else(|| known(element.parent), Ok);
        let caller = caller_of(element.principal, element.caller);
        directory.is_ok_and(|directory| caller.is_ok_and(|caller| directory.may_create(&caller)))
    }

    /// Whether the directory has neither an object nor a directory of this name (P29).
    fn is_vacant(&self, meta: &mut Probe, element: &Element<'_>) -> bool {
        let (pid, stem) = (element.pid, element.stem());
        let names = [stem, &format!("{stem}/")];
        !self.entries.contains(&(pid, stem))
            && !names.into_iter().any(|name| meta.find(&entry_key(pid, name), |_| ()).is_some())
    }

    /// Checks everything about a new entry; if it passes, records its request.
    pub fn claim<const N: usize>(&mut self, tables: &mut Tables<N>, element: &Element<'_>, verb: &str) -> bool {
        self.is_valid(element)
            && self.is_open(&mut tables.probe, element)
            && self.is_vacant(&mut tables.probe, element)
            && tables.record(element, verb)
    }

    pub fn count(&mut self, at: usize, element: &Element<'a>, subdirectories: i64, bytes: i64) {
        self.made.push(at as i32 + 1);
        self.entries.insert((element.pid, element.stem()));
        let delta = self.deltas.entry(element.pid).or_insert(Delta { ns: element.ns, ..Delta::default() });
        delta.entries += 1;
        delta.subdirectories += subdirectories;
        delta.bytes = add(delta.bytes, bytes);
    }
}
