//! The short way of mkdir and put_object: new entries against which nothing speaks, one after the other. What exists, is
//! refused, or was answered before is left to the way for all cases (`sql/verbs/mkdir.sql`, `put_object.sql`), which finds
//! out why. The caller has taken the latches (`verb.rs`), so what is read of a name here stays until the commit.

use std::collections::{BTreeMap, HashMap, HashSet, hash_map::Entry};

use mantle_types::name::check_name;

use super::{elements::Element, tables::Tables};
use crate::{
    postgres::probe::{Probe, entry_key},
    steps::{
        counts::{Delta, add},
        id_blocks::is_recorded,
        lease::{self, recent_epoch_of},
        request_age::is_fresh,
    },
};

/// What a call has found out, and done, so far.
#[derive(Default)]
pub struct Batch<'a> {
    /// Those that exist, and the epochs of their index groups.
    namespaces: HashMap<i64, u64>,
    /// Directories without a tombstone; the latch keeps them so.
    live: HashSet<i64>,
    /// Entries made, by directory and stem.
    entries: HashSet<(i64, &'a str)>,
    /// Numbers of the elements made, from 1.
    pub made: Vec<i32>,
    pub deltas: BTreeMap<i64, Delta>,
}

impl<'a> Batch<'a> {
    /// Are name, id, namespace and lease good, and is the request id none that has to be looked at?
    fn is_sound(&mut self, element: &Element<'_>) -> bool {
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

    /// Has the directory no tombstone (P7), and no entry of this name, be it a directory's or an object's
    /// (P29)?
    fn is_free(&mut self, meta: &mut Probe, element: &Element<'_>) -> bool {
        let (pid, object) = (element.pid, element.stem());
        let is_live = self.live.contains(&pid) || {
            let removed = meta.find(&entry_key(pid, "/_ATTR"), |row| row.named::<bool>(c"removed")).flatten();
            removed != Some(true) && self.live.insert(pid)
        };
        let names = [object, &format!("{object}/")];
        is_live
            && !self.entries.contains(&(pid, object))
            && !names.into_iter().any(|name| meta.find(&entry_key(pid, name), |_| ()).is_some())
    }

    /// Does nothing speak against this new entry? If so its request is recorded.
    pub fn claim<const N: usize>(&mut self, tables: &mut Tables<N>, element: &Element<'_>, verb: &str) -> bool {
        self.is_sound(element) && self.is_free(&mut tables.probe, element) && tables.record(element, verb)
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
