//! `mantle.put_object`: its arguments and its fast path.

use std::ffi::CStr;

use mantle_types::{
    EntryId,
    inline::inline_locator,
    limits::{INLINE_BYTES_MAX, LOCATOR_BYTES_MAX, OBJECT_BYTES_MAX},
    verbs::put_object,
};
use pgrx::{prelude::*, varlena};

use super::{
    elements::{self, Columns, Texts, documents, values},
    entry::verb,
    fast_path::{Batch, Made},
    tables::LocalTables,
};
use crate::{
    postgres::{
        call::{Arguments, call_step},
        clock::now,
        row::values as column_values,
    },
    steps::segment::{Admitted, is_in_volume},
};

const COLUMNS: [&CStr; 8] =
    [c"size", c"synthetic", c"etag", c"content_type", c"user_metadata", c"locator", c"created", c"modified"];

verb!(put_object, PUT_OBJECT, c"put_object_fallback", mantle_put_object, pg_finfo_mantle_put_object);

/// Latches the segments of volumes that hold the objects' bytes (P59).
fn latch_more(call: &Arguments) -> Option<String> {
    let is_any = elements::texts(call, put_object::LOCATOR)?.iter().flatten().any(is_in_volume);
    let locators = || call.raw(put_object::LOCATOR.place());
    is_any.then(|| call_step(c"latch_segments", &[pg_sys::TEXTARRAYOID], &[locators()])).flatten()
}

/// Makes the new objects of a batch; returns the numbers of those made, from 1. If these are all, it also adds to the
/// counts; otherwise the fallback does that for the whole batch.
fn fast_path(call: &Arguments) -> Option<Made> {
    let texts = Texts::of(call, &PUT_OBJECT.arguments)?;
    let mut columns = Columns::of(call, &texts, &PUT_OBJECT.arguments)?;
    let text = |argument| elements::texts(call, argument);
    let (size, user_metadata) = (values(call, put_object::SIZE)?, documents(call, put_object::USER_METADATA)?);
    let (etag, content_type) = (text(put_object::ETAG)?, text(put_object::CONTENT_TYPE)?);
    let (locator, condition) = (text(put_object::LOCATOR)?, text(put_object::CONDITION)?);
    let lengths = [size.len(), etag.len(), content_type.len(), user_metadata.len(), locator.len(), condition.len()];
    let inline = elements::bytes(call, put_object::INLINE);
    let is_inline_whole = inline.as_ref().is_none_or(|inline| inline.len() == columns.name.len());
    if !is_inline_whole || !columns.have_equal_lengths(lengths) {
        return None;
    }
    let (mut etag, mut content_type, mut locator) = (etag.iter(), content_type.iter(), locator.iter());
    let (mut user_metadata, mut condition) = (user_metadata.into_iter(), condition.iter());
    let (mut batch, mut admitted) = (Batch::default(), Admitted::default());
    let modes = Spi::connect_mut(|_| {
        let modes = columns.mask_modes(|ns| batch.umask_of(ns));
        let mut local = LocalTables::new(COLUMNS);
        for (at, size) in size.into_iter().enumerate() {
            let (etag, content_type, locator) =
                (etag.next().flatten(), content_type.next().flatten(), locator.next().flatten());
            let (user_metadata, condition) = (user_metadata.next().flatten(), condition.next().flatten());
            let Some((e, size)) = columns.element(at).zip(size) else { continue };
            if !matches!(condition, None | Some("*absent")) || e.name.ends_with('/') {
                continue;
            }
            let bytes = inline.as_ref().and_then(|inline| inline[at]);
            let is_storable = match bytes {
                Some(bytes) => locator.is_none() && is_of_size(bytes, size),
                None => {
                    (0..=OBJECT_BYTES_MAX as i64).contains(&size)
                        && locator.is_none_or(|locator| locator.len() <= LOCATOR_BYTES_MAX)
                }
            };
            if !is_storable || locator.is_some_and(|locator| admitted.fault(locator).is_some()) {
                continue;
            }
            let Some(tables) = local.of(e.pid) else { continue };
            if bytes.is_some() && !tables.take_inline() || !batch.claim(tables, &e, "put_object") {
                continue;
            }
            let inline = bytes.map(|_| inline_locator(EntryId::from(e.id)));
            let locator = inline.as_deref().or(locator);
            tables.insert(&e, column_values![size, false, etag, content_type, user_metadata, locator, now(), now()]);
            if bytes.is_some() {
                tables.insert_inline(e.pid, e.id, bytes);
            }
            batch.count(at, &e, 0, size);
        }
        if batch.made.len() == columns.name.len() {
            local.count(&batch.deltas, &mut batch.records);
        }
        modes
    });
    Some(Made { numbers: batch.made, modes })
}

/// Whether bytes may be kept inside PostgreSQL, and are those of an object of this size.
fn is_of_size(bytes: pg_sys::Datum, size: i64) -> bool {
    // SAFETY: an element of an array of byte strings.
    let length = unsafe { varlena::varsize_any_exhdr(bytes.cast_mut_ptr::<pg_sys::varlena>()) };
    (1..=INLINE_BYTES_MAX).contains(&length) && length as i64 == size
}
