//! Fast path of mkdir and put_object: inserts entries that pass every check; everything else falls back to SQL.
//!
//! It handles the elements one after the other. An element that exists, is refused or was answered before is left to
//! the fallback (`sql/verbs/mkdir.sql`, `put_object.sql`), which finds the reason. The caller has taken the latches
//! (`entry.rs`), so what is read of a name stays true until the commit.

use std::collections::{BTreeMap, HashMap, HashSet, hash_map::Entry};

use mantle_types::name::check_name;

use super::{elements::Element, tables::Tables};
use crate::{
    postgres::probe::Probe,
    steps::{
        counts::{Delta, add},
        id_blocks::is_recorded,
        key::entry_key,
        lease::{self, recent_epoch_of},
        request_age::is_fresh,
    },
};

/// What a call has read and done so far.
#[derive(Default)]
pub struct Batch<'a> {
    /// Namespaces that exist, and the epochs of their index groups.
    namespaces: HashMap<i64, u64>,
    /// Directories without a tombstone. The latch prevents a new one.
    live: HashSet<i64>,
    /// The entries made, by directory and name without slash.
    entries: HashSet<(i64, &'a str)>,
    /// The numbers of the elements made, from 1.
    pub made: Vec<i32>,
    pub deltas: BTreeMap<i64, Delta>,
}

impl<'a> Batch<'a> {
    /// Checks the name, the id, the namespace, the lease and the age of the request id.
    fn is_valid(&mut self, element: &Element<'_>) -> bool {
        if check_name(element.stem()).is_err() || !is_recorded(element.id) || !is_fresh(&element.request) {
            return false;
        }
        let epoch = match self.namespaces.entry(element.ns) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(unknown) => match recent_epoch_of(element.ns) {
                Some(epoch) => *unknown.insert(epoch),
                None => return false,
            },
        };
        lease::check(element.lease, epoch).is_ok()
    }

    /// Whether the directory has no tombstone (P16), and neither an object nor a directory of this name (P29).
    fn is_vacant(&mut self, meta: &mut Probe, element: &Element<'_>) -> bool {
        let (pid, stem) = (element.pid, element.stem());
        let is_live = self.live.contains(&pid) || {
            let removed = meta.find(&entry_key(pid, "/_ATTR"), |row| row.named::<bool>(c"removed")).flatten();
            removed != Some(true) && self.live.insert(pid)
        };
        let names = [stem, &format!("{stem}/")];
        is_live
            && !self.entries.contains(&(pid, stem))
            && !names.into_iter().any(|name| meta.find(&entry_key(pid, name), |_| ()).is_some())
    }

    /// Checks everything about a new entry; if it passes, records its request.
    pub fn claim<const N: usize>(&mut self, tables: &mut Tables<N>, element: &Element<'_>, verb: &str) -> bool {
        self.is_valid(element) && self.is_vacant(&mut tables.probe, element) && tables.record(element, verb)
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
