//! Plans bulk imports of directories, and screens imports of objects. Pure: arrays in, rows out.
//!
//! An import of directories may have parents and children in one call, and a parent may already exist under another id.
//! One forward pass (parents precede children) finds the real place of every element; `mantle.import_directories`
//! repeats the plan until it finds no new existing parent.

use std::collections::{HashMap, HashSet};

use mantle_types::{
    ErrorCode,
    limits::{ID_MIN, OBJECT_BYTES_MAX},
    name::check_name,
};
use pgrx::prelude::*;

use crate::fault::sqlstate;

/// The plan of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Planned {
    /// Its directory: the given one, or the existing one that stands for its parent in the call.
    pid: i64,
    /// Whether `pid` exists outside of this call, and so needs a latch.
    outside: bool,
    /// Why the element is refused; MT012 if it exists.
    code: Option<String>,
    /// The existing directory's id, with MT012.
    existing: Option<i64>,
}

struct Element<'a> {
    pid: i64,
    name: &'a str,
    id: i64,
    code: Option<String>,
    existing: Option<i64>,
}

fn plan(elements: &[Element<'_>]) -> Vec<Planned> {
    let refused = |code: ErrorCode| Some(sqlstate(code).to_owned());
    let mut by_id: HashMap<i64, usize> = HashMap::with_capacity(elements.len());
    let all_ids: HashMap<i64, usize> = elements.iter().enumerate().rev().map(|(i, e)| (e.id, i)).collect();
    let mut by_place: HashMap<(i64, &str), usize> = HashMap::with_capacity(elements.len());
    let mut planned: Vec<Planned> = Vec::with_capacity(elements.len());
    for (i, element) in elements.iter().enumerate() {
        let mut this =
            Planned { pid: element.pid, outside: true, code: element.code.clone(), existing: element.existing };
        match by_id.get(&element.pid).map(|parent| &planned[*parent]) {
            Some(Planned { existing: Some(existing), .. }) => {
                this.pid = *existing;
                // `existing` may be the first element of this place in the call, which is new unless it exists itself.
                this.outside = by_id.get(existing).is_none_or(|first| planned[*first].existing.is_some());
            }
            Some(Planned { code: Some(_), .. }) => this.code = this.code.or(refused(ErrorCode::DirectoryRemoved)),
            Some(_) => this.outside = false,
            // The parent comes later, or the element is its own parent.
            None if all_ids.contains_key(&element.pid) => this.code = this.code.or(refused(ErrorCode::InvalidArgument)),
            None => {}
        }
        if this.code.is_none() {
            if let Some(first) = by_place.get(&(this.pid, element.name)) {
                this.code = refused(ErrorCode::AlreadyExists);
                this.existing = planned[*first].existing.or(Some(elements[*first].id));
            } else if by_id.contains_key(&element.id) {
                this.code = refused(ErrorCode::InvalidArgument);
            }
        }
        if this.code.is_none() || this.existing.is_some() {
            by_place.entry((this.pid, element.name)).or_insert(i);
        }
        by_id.entry(element.id).or_insert(i);
        planned.push(this);
    }
    planned
}

/// The real places of the directories of an import. The caller has refused NULLs.
#[pg_extern(immutable)]
#[allow(clippy::type_complexity)]
fn import_plan<'a>(
    pid: Array<'a, i64>,
    name: Array<'a, &'a str>,
    id: Array<'a, i64>,
    code: Array<'a, &'a str>,
    existing: Array<'a, i64>,
) -> TableIterator<
    'static,
    (name!(ord, i32), name!(pid, i64), name!(outside, bool), name!(code, Option<String>), name!(existing, Option<i64>)),
> {
    let (mut name, mut id, mut code, mut existing) = (name.iter(), id.iter(), code.iter(), existing.iter());
    let elements: Vec<Element<'_>> = pid
        .iter()
        .map(|pid| Element {
            pid: pid.unwrap_or_default(),
            name: name.next().flatten().unwrap_or_default(),
            id: id.next().flatten().unwrap_or_default(),
            code: code.next().flatten().map(str::to_owned),
            existing: existing.next().flatten(),
        })
        .collect();
    let rows = plan(&elements);
    TableIterator::new((1..).zip(rows).map(|(ord, p)| (ord, p.pid, p.outside, p.code, p.existing)))
}

/// What an import of objects must check before it inserts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Screened {
    refused_ord: Vec<i32>,
    refused_code: Vec<&'static str>,
    /// Second and later elements of a place.
    repeated_ord: Vec<i32>,
    /// Elements in directories that may not be empty.
    check: Vec<i32>,
}

fn screen<'a>(elements: impl Iterator<Item = (i64, &'a str, i64)>, removed: &[i64], occupied: &[i64]) -> Screened {
    let removed: HashSet<i64> = removed.iter().copied().collect();
    let occupied: HashSet<i64> = occupied.iter().copied().collect();
    let mut places = HashSet::new();
    let mut screened = Screened::default();
    for (ord, (pid, name, size)) in (1..).zip(elements) {
        let code = match check_name(name) {
            Err(e) => Some(e.code()),
            Ok(()) if pid < ID_MIN || !(0..=OBJECT_BYTES_MAX as i64).contains(&size) => {
                Some(ErrorCode::InvalidArgument)
            }
            Ok(()) if removed.contains(&pid) => Some(ErrorCode::DirectoryRemoved),
            Ok(()) => None,
        };
        if let Some(code) = code {
            screened.refused_ord.push(ord);
            screened.refused_code.push(sqlstate(code));
        } else if !places.insert((pid, name)) {
            screened.repeated_ord.push(ord);
        } else if occupied.contains(&pid) {
            screened.check.push(ord);
        }
    }
    screened
}

/// Checks an import of objects in one pass: names, sizes, removed directories, repetitions within the call. It answers
/// the places of the remaining elements in `occupied` directories, which the caller must look up. NULL elements are
/// refused.
#[pg_extern(immutable)]
#[allow(clippy::type_complexity)]
fn import_screen<'a>(
    pid: Array<'a, i64>,
    name: Array<'a, &'a str>,
    size: Array<'a, i64>,
    removed: Vec<i64>,
    occupied: Vec<i64>,
) -> TableIterator<
    'static,
    (
        name!(refused_ord, Vec<i32>),
        name!(refused_code, Vec<&'static str>),
        name!(repeated_ord, Vec<i32>),
        name!(check_ord, Vec<i32>),
        name!(check_pid, Vec<i64>),
        name!(check_name, Vec<String>),
    ),
> {
    let elements: Vec<(i64, &str, i64)> = pid
        .iter()
        .zip(name.iter())
        .zip(size.iter())
        .map(|((pid, name), size)| (pid.unwrap_or(0), name.unwrap_or(""), size.unwrap_or(-1)))
        .collect();
    let Screened { refused_ord, refused_code, repeated_ord, check } =
        screen(elements.iter().copied(), &removed, &occupied);
    let (check_pid, check_name) =
        check.iter().map(|ord| &elements[*ord as usize - 1]).map(|(pid, name, _)| (*pid, (*name).to_owned())).unzip();
    TableIterator::once((refused_ord, refused_code, repeated_ord, check, check_pid, check_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(pid: i64, name: &str, id: i64) -> Element<'_> {
        Element { pid, name, id, code: None, existing: None }
    }

    #[test]
    fn children_follow_a_parent_that_exists() {
        let mut elements = [element(1, "a/", 10), element(10, "b/", 11), element(11, "c/", 12)];
        let fresh = plan(&elements);
        assert_eq!(fresh.iter().map(|p| (p.pid, p.outside)).collect::<Vec<_>>(), [(1, true), (10, false), (11, false)]);
        elements[0].code = Some("MT012".into());
        elements[0].existing = Some(7);
        let moved = plan(&elements);
        assert_eq!(moved[1], Planned { pid: 7, outside: true, code: None, existing: None });
        assert!(!moved[2].outside);
    }

    #[test]
    fn duplicates_stand_for_their_first() {
        let planned = plan(&[element(1, "a/", 10), element(1, "a/", 11), element(11, "b/", 12), element(10, "b/", 13)]);
        assert_eq!(planned[1].existing, Some(10));
        assert_eq!((planned[2].pid, planned[2].outside), (10, false));
        assert_eq!(planned[3].existing, Some(12));
    }

    #[test]
    fn children_of_the_refused_and_of_later_parents_are_refused() {
        let mut elements = [element(1, "a", 10), element(10, "b/", 11), element(13, "c/", 12), element(1, "d/", 13)];
        elements[0].code = Some("MT001".into());
        let codes: Vec<_> = plan(&elements).into_iter().map(|p| p.code).collect();
        assert_eq!(codes, [Some("MT001".into()), Some("MT018".into()), Some("MT006".into()), None]);
    }

    #[test]
    fn objects_are_screened() {
        let elements =
            [(2000, "a", 1), (2000, "a", 2), (2001, "b", 3), (2000, "..", 4), (2002, "c", 5), (2000, "d", -1)];
        let screened = screen(elements.into_iter(), &[2002], &[2001]);
        assert_eq!(screened.refused_ord, [4, 5, 6]);
        assert_eq!(screened.refused_code, ["MT001", "MT018", "MT006"]);
        assert_eq!((screened.repeated_ord, screened.check), (vec![2], vec![3]));
    }
}
