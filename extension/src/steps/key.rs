//! Primary keys of the MetaTable: `(pid, name, ts)`.

use crate::postgres::probe::Key;

/// The key of an entry, or of the primary attribute record.
pub fn entry_key(pid: i64, name: &str) -> [Key; 3] {
    record_key(pid, name, 0)
}

/// The key of any record; `ts` is 0 except for delta records.
pub fn record_key(pid: i64, name: &str, ts: i64) -> [Key; 3] {
    [Key::int8(1, pid), Key::text(2, name), Key::int8(3, ts)]
}
