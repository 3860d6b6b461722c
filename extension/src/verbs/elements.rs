//! Converts the parallel arrays that a verb is called with into elements. Their order comes from the table of verbs
//! (`mantle_types::verbs`).

use mantle_types::{
    limits::{ID_MIN, MODE_MAX},
    verbs::{Argument, BigInt, Boolean, Bytea, Int, Jsonb, SqlType, Text, Uuid, Verb},
};
use pgrx::{pg_sys, prelude::*};

use crate::{
    postgres::{call::Arguments, row::Value},
    steps::{batch::shape_error, name::stem},
};

/// Rust's type for the fixed-width values of an argument.
pub trait Scalar {
    type Value;
}

macro_rules! scalars {
    ($($of:ident $value:ty;)+) => { $(impl Scalar for $of { type Value = $value; })+ };
}

scalars! { Int i32; BigInt i64; Boolean bool; Uuid pgrx::Uuid; }

/// The values of an argument, one an element; `None` if the array is NULL.
pub fn values<T: Scalar>(call: &Arguments, argument: Argument<T>) -> Option<Vec<Option<T::Value>>>
where
    Vec<Option<T::Value>>: FromDatum,
{
    call.get(argument.place())
}

/// The texts of an argument, borrowed from the call's memory.
pub fn texts<'a>(call: &Arguments, argument: Argument<Text>) -> Option<Array<'a, &'a str>> {
    call.get(argument.place())
}

/// The JSON documents of an argument, not parsed.
pub fn documents(call: &Arguments, argument: Argument<Jsonb>) -> Option<Vec<Value>> {
    call.elements(argument.place(), pg_sys::JSONBOID)
}

/// The byte strings of an argument, not converted; `None` if the array is NULL. An older version of the function does not have
/// the argument: the library may be newer than the database's functions.
pub fn bytes(call: &Arguments, argument: Argument<Bytea>) -> Option<Vec<Value>> {
    let at = argument.place();
    if at < call.count() { call.elements(at, pg_sys::BYTEAOID) } else { None }
}

/// The argument types of a verb's fallback: the verb's own, then the numbers of the elements made, and `last`.
pub const fn fallback_types<const N: usize>(verb: &Verb, last: pg_sys::Oid) -> [pg_sys::Oid; N] {
    assert!(N == verb.arguments.len() + 2);
    let mut types = [last; N];
    let mut at = 0;
    while at < verb.arguments.len() {
        types[at] = match verb.arguments[at].1 {
            SqlType::Int => pg_sys::INT4ARRAYOID,
            SqlType::BigInt => pg_sys::INT8ARRAYOID,
            SqlType::Text => pg_sys::TEXTARRAYOID,
            SqlType::Boolean => pg_sys::BOOLARRAYOID,
            SqlType::Jsonb => pg_sys::JSONBARRAYOID,
            SqlType::Uuid => pg_sys::UUIDARRAYOID,
            SqlType::Bytea => pg_sys::BYTEAARRAYOID,
        };
        at += 1;
    }
    types[at] = pg_sys::INT4ARRAYOID;
    types
}

/// The arguments of a verb that describe a new entry.
pub struct EntryArguments {
    pub verb: Verb,
    pub name: Argument<Text>,
    pub id: Argument<BigInt>,
    pub owner: Argument<Int>,
    pub grp: Argument<Int>,
    pub mode: Argument<Int>,
}

/// The arrays that both verbs have.
pub struct Columns<'a> {
    principal: Vec<Option<i32>>,
    ns: Vec<Option<i64>>,
    pid: Vec<Option<i64>>,
    pub name: Vec<Option<&'a str>>,
    id: Vec<Option<i64>>,
    owner: Vec<Option<i32>>,
    grp: Vec<Option<i32>>,
    mode: Vec<Option<i32>>,
    request: Vec<Option<pgrx::Uuid>>,
    hash: Vec<Option<i64>>,
    /// Empty if all ids were resolved in this transaction.
    lease: Vec<Option<&'a str>>,
    /// Empty if the principals are the callers.
    caller: Vec<Option<&'a str>>,
    /// Empty if no lookup has found the directories' permissions.
    parent: Vec<Option<&'a str>>,
}

/// The text arrays that [`Columns`] borrows from.
pub struct Texts<'a> {
    name: Array<'a, &'a str>,
    lease: Option<Array<'a, &'a str>>,
    caller: Option<Array<'a, &'a str>>,
    parent: Option<Array<'a, &'a str>>,
}

impl Texts<'_> {
    /// `None` if the names are NULL.
    pub fn of(call: &Arguments, of: &EntryArguments) -> Option<Self> {
        let optional = |argument| texts(call, argument);
        Some(Self {
            name: texts(call, of.name)?,
            lease: optional(of.verb.lease),
            caller: optional(of.verb.caller),
            parent: optional(of.verb.parent),
        })
    }
}

/// An element without forbidden NULLs, and with every number in range.
pub struct Element<'a> {
    pub principal: i32,
    pub ns: i64,
    pub pid: i64,
    /// With the slash of a directory.
    pub name: &'a str,
    pub id: i64,
    pub owner: i32,
    pub grp: i32,
    pub mode: i32,
    pub request: pgrx::Uuid,
    pub hash: i64,
    pub lease: Option<&'a str>,
    pub caller: Option<&'a str>,
    pub parent: Option<&'a str>,
}

impl<'a> Element<'a> {
    /// The name without its slash.
    pub fn stem(&self) -> &'a str {
        stem(self.name)
    }
}

/// The texts of an array; none if the array is NULL.
pub fn all<'a, 't: 'a>(texts: &'a Option<Array<'t, &'t str>>) -> Vec<Option<&'a str>> {
    texts.iter().flat_map(|texts| texts.iter()).collect()
}

impl<'a> Columns<'a> {
    /// `None` if an array is NULL.
    pub fn of(call: &Arguments, texts: &'a Texts<'_>, of: &EntryArguments) -> Option<Self> {
        Some(Self {
            principal: values(call, of.verb.principal)?,
            ns: values(call, of.verb.ns)?,
            pid: values(call, of.verb.pid)?,
            name: texts.name.iter().collect(),
            id: values(call, of.id)?,
            owner: values(call, of.owner)?,
            grp: values(call, of.grp)?,
            mode: values(call, of.mode)?,
            request: values(call, of.verb.request)?,
            hash: values(call, of.verb.hash)?,
            lease: all(&texts.lease),
            caller: all(&texts.caller),
            parent: all(&texts.parent),
        })
    }

    /// Whether all arrays, including the verb's `others`, are as long as the names, and not too long. The last
    /// three may be missing.
    pub fn have_equal_lengths<const N: usize>(&self, others: [usize; N]) -> bool {
        let lengths = [
            self.principal.len(),
            self.ns.len(),
            self.pid.len(),
            self.id.len(),
            self.owner.len(),
            self.grp.len(),
            self.mode.len(),
            self.request.len(),
            self.hash.len(),
        ];
        let optional =
            [self.lease.len(), self.caller.len(), self.parent.len()].into_iter().filter(|length| *length > 0);
        shape_error(self.name.len(), lengths.into_iter().chain(others).chain(optional)).is_none()
    }

    /// Takes away the mode bits that nothing new gets in the elements' namespaces; answers the modes that are left.
    pub fn mask_modes(&mut self, mut umask_of: impl FnMut(i64) -> i32) -> Vec<Option<i32>> {
        for (mode, ns) in self.mode.iter_mut().zip(&self.ns) {
            // A mode that is out of range stays so, and is refused.
            if let (Some(mode @ 0..), Some(ns)) = (mode, ns) {
                *mode &= !umask_of(*ns);
            }
        }
        self.mode.clone()
    }

    pub fn element(&self, at: usize) -> Option<Element<'a>> {
        let element = Element {
            principal: self.principal[at]?,
            ns: self.ns[at]?,
            pid: self.pid[at]?,
            name: self.name[at]?,
            id: self.id[at]?,
            owner: self.owner[at]?,
            grp: self.grp[at]?,
            mode: self.mode[at]?,
            request: self.request[at]?,
            hash: self.hash[at].unwrap_or(0),
            lease: self.lease.get(at).copied().flatten(),
            caller: self.caller.get(at).copied().flatten(),
            parent: self.parent.get(at).copied().flatten(),
        };
        let in_range = element.pid >= ID_MIN && element.owner >= 0 && element.grp >= 0;
        (in_range && (0..=MODE_MAX as i32).contains(&element.mode)).then_some(element)
    }
}
