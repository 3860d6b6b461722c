//! put_object: several at once, by two statements for all.

use pgrx::{JsonB, prelude::*};

use super::{Call, Columns, Element, INT4, INT4S, INT8, INT8S, JSONB, JSONBS, Seen, TEXT, TEXTS, claim_many, column};
use crate::{
    distribution::is_distributed,
    kept::{Kept, argument},
};

/// From so many on, elements of a batch are made at once rather than one after the other.
const AT_ONCE_MIN: usize = 4;

thread_local! {
    static INSERT_OBJECT: Kept = const { Kept::new(
        c"INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, size, synthetic, etag, content_type,
                                   user_metadata, locator, created, modified)
          VALUES ($1, $2, $3, $4, $5, $6, $7, 1, $8, false, $9, $10, $11, $12, now(), now())",
        &[INT8, TEXT, INT8, INT8, INT4, INT4, INT4, INT8, TEXT, TEXT, JSONB, TEXT]) };
    static INSERT_OBJECTS: Kept = const { Kept::new(
        c"INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, size, synthetic, etag, content_type,
                                   user_metadata, locator, created, modified)
          SELECT u.pid, u.name, u.ns, u.id, u.owner, u.grp, u.mode, 1, u.size, false, u.etag, u.content_type,
                 u.user_metadata, u.locator, now(), now()
            FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
                 AS u(pid, name, ns, id, owner, grp, mode, size, etag, content_type, user_metadata, locator)",
        &[INT8S, TEXTS, INT8S, INT8S, INT4S, INT4S, INT4S, INT8S, TEXTS, TEXTS, JSONBS, TEXTS]) };
}

/// An object that may be new.
struct NewObject<'a> {
    at: usize,
    entry: Element<'a>,
    size: i64,
    etag: Option<&'a str>,
    content_type: Option<&'a str>,
    user_metadata: Option<JsonB>,
    locator: Option<&'a str>,
}

fn put_one_by_one(call: &mut Call, objects: Vec<NewObject<'_>>) {
    for object in objects {
        let e = &object.entry;
        if !call.claim(e, "put_object") {
            continue;
        }
        INSERT_OBJECT.with(|s| {
            s.run(&[
                argument(e.pid),
                argument(e.name),
                argument(e.ns),
                argument(e.id),
                argument(e.owner),
                argument(e.grp),
                argument(e.mode),
                argument(object.size),
                argument(object.etag),
                argument(object.content_type),
                argument(object.user_metadata),
                argument(object.locator),
            ])
        });
        call.count(object.at, e, 0, object.size);
    }
}

/// Two statements for all.
fn put_at_once(call: &mut Call, mut objects: Vec<NewObject<'_>>) {
    let mut seen = Seen::default();
    objects.retain(|object| seen.is_first(&object.entry) && call.is_sound(&object.entry));
    if objects.is_empty() {
        return;
    }
    let claimed = claim_many(&objects.iter().map(|object| &object.entry).collect::<Vec<_>>(), "put_object");
    objects.retain(|object| claimed.contains(&object.entry.id));
    INSERT_OBJECTS.with(|s| {
        s.run(&[
            column(&objects, |object| object.entry.pid),
            column(&objects, |object| object.entry.name),
            column(&objects, |object| object.entry.ns),
            column(&objects, |object| object.entry.id),
            column(&objects, |object| object.entry.owner),
            column(&objects, |object| object.entry.grp),
            column(&objects, |object| object.entry.mode),
            column(&objects, |object| object.size),
            column(&objects, |object| object.etag),
            column(&objects, |object| object.content_type),
            column(&objects, |object| object.user_metadata.as_ref().map(|json| JsonB(json.0.clone()))),
            column(&objects, |object| object.locator),
        ])
    });
    for object in &objects {
        call.count(object.at, &object.entry, 0, object.size);
    }
}

/// Makes the new objects of a batch; answers the numbers of those made, from 1. If that is all, it has also added to the
/// counts; else that is left to the caller, who adds what the others need.
#[pg_extern(volatile)]
#[allow(clippy::too_many_arguments)]
fn put_new_object(
    principal: Array<i32>,
    ns: Array<i64>,
    pid: Array<i64>,
    name: Array<&str>,
    id: Array<i64>,
    owner: Array<i32>,
    grp: Array<i32>,
    mode: Array<i32>,
    size: Array<i64>,
    etag: Array<&str>,
    content_type: Array<&str>,
    user_metadata: Array<JsonB>,
    locator: Array<&str>,
    condition: Array<&str>,
    request: Array<pgrx::Uuid>,
    hash: Array<i64>,
) -> Vec<i32> {
    let columns = Columns {
        principal: principal.iter().collect(),
        ns: ns.iter().collect(),
        pid: pid.iter().collect(),
        name: name.iter().collect(),
        id: id.iter().collect(),
        owner: owner.iter().collect(),
        grp: grp.iter().collect(),
        mode: mode.iter().collect(),
        request: request.iter().collect(),
        hash: hash.iter().collect(),
    };
    let (mut etag, mut content_type, mut locator) = (etag.iter(), content_type.iter(), locator.iter());
    let (mut user_metadata, mut condition) = (user_metadata.iter(), condition.iter());
    let mut objects = Vec::with_capacity(columns.name.len());
    for (at, size) in size.iter().enumerate() {
        let (etag, content_type, locator) =
            (etag.next().flatten(), content_type.next().flatten(), locator.next().flatten());
        let (user_metadata, condition) = (user_metadata.next().flatten(), condition.next().flatten());
        let Some((entry, size)) = columns.element(at).zip(size) else { continue };
        if matches!(condition, None | Some("*absent")) && size >= 0 && !entry.name.ends_with('/') {
            objects.push(NewObject { at, entry, size, etag, content_type, user_metadata, locator });
        }
    }
    let mut call = Call::default();
    Spi::connect_mut(|_| {
        match objects.len() >= AT_ONCE_MIN && !is_distributed() {
            true => put_at_once(&mut call, objects),
            false => put_one_by_one(&mut call, objects),
        }
        if call.made.len() == columns.name.len() {
            call.deltas.iter().for_each(|(pid, delta)| delta.add_to(*pid));
        }
    });
    call.made
}
