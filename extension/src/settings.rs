//! The extension's settings (GUCs). Rust reads the variables, SQL calls `current_setting`. Names end in their units.

use std::ffi::{CStr, CString};

use mantle_types::limits::TOMBSTONE_RETENTION_MIN_S;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};

/// How a change is added to its directory's counts (`steps/counts.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum DeltaRecords {
    /// In place if the attribute record is not locked, otherwise as a delta record.
    #[name = c"auto"]
    Auto,
    /// Always as a delta record.
    #[name = c"always"]
    Always,
    /// In place, after waiting for the attribute record.
    #[name = c"never"]
    Never,
}

/// Changed only in measurements.
pub static DELTA_RECORDS: GucSetting<DeltaRecords> = GucSetting::<DeltaRecords>::new(DeltaRecords::Auto);

static COMPACTION_DATABASES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c"*"));
// `INTEGERS` says what the numbers mean.
pub static COMPACTION_NAPTIME_MS: GucSetting<i32> = GucSetting::<i32>::new(1_000);
pub static COMPACTION_BATCH: GucSetting<i32> = GucSetting::<i32>::new(1_000);
pub static PRUNE_GRACE_MS: GucSetting<i32> = GucSetting::<i32>::new(5_000);
pub static REQUEST_RETENTION_S: GucSetting<i32> = GucSetting::<i32>::new(86_400);
pub static REQUEST_ROWS_MAX: GucSetting<i32> = GucSetting::<i32>::new(50_000_000);
pub static TOMBSTONE_RETENTION_S: GucSetting<i32> = GucSetting::<i32>::new(86_400);
// `sql/monitor/server_problems.sql` reads them.
static TRANSACTION_AGE_MAX_S: GucSetting<i32> = GucSetting::<i32>::new(900);
static PREPARED_AGE_MAX_S: GucSetting<i32> = GucSetting::<i32>::new(60);
static SNAPSHOT_AGE_MAX_XIDS: GucSetting<i32> = GucSetting::<i32>::new(5_000_000);
static CERTIFICATE_DAYS_MIN: GucSetting<i32> = GucSetting::<i32>::new(14);
static CONNECTIONS_MAX_PERCENT: GucSetting<i32> = GucSetting::<i32>::new(90);
/// Gateways read it with the index group. Those that must wait for its end read it too: a group founded beside one that
/// may still live, and each step of a namespace's move.
pub static EPOCH_LEASE_MS: GucSetting<i32> = GucSetting::<i32>::new(60_000);

/// Databases that get a worker.
pub enum Databases {
    /// All databases that have the extension (`*`).
    All,
    /// These databases. One that does not exist, or has no extension yet, is checked again later.
    Named(Vec<String>),
}

impl Databases {
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(|named| named == name),
        }
    }
}

/// The setting `mantle.compaction_databases`, comma separated.
pub fn compaction_databases() -> Databases {
    let list = COMPACTION_DATABASES.get().and_then(|s| s.into_string().ok()).unwrap_or_default();
    let names: Vec<String> = list.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect();
    if names.iter().any(|name| name == "*") { Databases::All } else { Databases::Named(names) }
}

/// An integer setting of the server. The registration and `docs/settings.md` both read this table.
struct Integer {
    name: &'static CStr,
    meaning: &'static CStr,
    detail: &'static CStr,
    setting: &'static GucSetting<i32>,
    min: i32,
    max: i32,
}

const COMPACTION_DATABASES_MEANING: &CStr =
    c"Databases that get a compaction worker, comma separated; *: all that have the extension. Empty: none.";
const DELTA_RECORDS_MEANING: &CStr =
    c"How a change is added to the counts of its directory: in place if the record is free, \
    else by a delta record (auto); always by a delta record (always); in place, after waiting (never).";
const DELTA_RECORDS_DETAIL: &CStr =
    c"always and never are for comparisons. On Citus the setting of the directory's node applies.";

const INTEGERS: &[Integer] = &[
    Integer {
        name: c"mantle.certificate_days_min",
        meaning: c"mantle.server_problems() names a certificate of ssl_cert_file or ssl_ca_file this many days before its end.",
        detail: c"",
        setting: &CERTIFICATE_DAYS_MIN,
        min: 0,
        max: 3_650,
    },
    Integer {
        name: c"mantle.compaction_naptime_ms",
        meaning: c"Longest time between two rounds of the worker over all directories with delta records.",
        detail: c"Directories that had many delta records are visited every 50 ms.",
        setting: &COMPACTION_NAPTIME_MS,
        min: 10,
        max: 3_600_000,
    },
    Integer {
        name: c"mantle.compaction_batch",
        meaning: c"Most rows that one transaction of the worker changes.",
        detail: c"",
        setting: &COMPACTION_BATCH,
        min: 1,
        max: 100_000,
    },
    Integer {
        name: c"mantle.connections_max_percent",
        meaning: c"mantle.server_problems() reports when this share of the connections is in use: of all that are not reserved, \
            and of the CONNECTION LIMIT of each role and database.",
        detail: c"",
        setting: &CONNECTIONS_MAX_PERCENT,
        min: 1,
        max: 100,
    },
    Integer {
        name: c"mantle.epoch_lease_ms",
        meaning: c"How long a gateway relies on what it read about an index group. Must be longer than a failover.",
        detail: c"A gateway reads it again every second. A new index group, and each step of a namespace's move, waits for this \
            time. After you lower the setting, wait for the old time before you begin either.",
        setting: &EPOCH_LEASE_MS,
        min: 2_000,
        max: 600_000,
    },
    Integer {
        name: c"mantle.prepared_age_max_s",
        meaning: c"Age at which mantle.server_problems() names a prepared transaction, of any database.",
        detail: c"Citus finishes its own within seconds, if it reaches the node.",
        setting: &PREPARED_AGE_MAX_S,
        min: 1,
        max: 31_536_000,
    },
    Integer {
        name: c"mantle.prune_grace_ms",
        meaning: c"How long an implicit directory stays after it has lost its last entry.",
        detail: c"",
        setting: &PRUNE_GRACE_MS,
        min: 0,
        max: 86_400_000,
    },
    Integer {
        name: c"mantle.request_retention_s",
        meaning: c"How long the answer to a request id, and a finished operation, is kept.",
        detail: c"",
        setting: &REQUEST_RETENTION_S,
        min: 60,
        max: 31_536_000,
    },
    Integer {
        name: c"mantle.request_rows_max",
        meaning: c"Most answers to request ids that a node keeps, counted by PostgreSQL's statistics; 0: any number.",
        detail: c"If there are more, the worker purges the oldest, but none of the last minute.",
        setting: &REQUEST_ROWS_MAX,
        min: 0,
        max: i32::MAX,
    },
    Integer {
        name: c"mantle.snapshot_age_max_xids",
        meaning: c"Age, in transactions, at which mantle.server_problems() names a snapshot: of a session, a slot, or a standby's \
            hot_standby_feedback.",
        detail: c"",
        setting: &SNAPSHOT_AGE_MAX_XIDS,
        min: 1,
        max: i32::MAX,
    },
    Integer {
        name: c"mantle.tombstone_retention_s",
        meaning: c"How long tombstones and rename attempts are kept. Must be longer than any request takes.",
        detail: c"",
        setting: &TOMBSTONE_RETENTION_S,
        min: TOMBSTONE_RETENTION_MIN_S as i32,
        max: 31_536_000,
    },
    Integer {
        name: c"mantle.transaction_age_max_s",
        meaning: c"Age at which mantle.server_problems() names an open transaction, of any database.",
        detail: c"Should be longer than the statement_timeout of analysts.",
        setting: &TRANSACTION_AGE_MAX_S,
        min: 1,
        max: 31_536_000,
    },
];

/// Registers the settings. Called once, when the library is loaded.
pub fn define() {
    let flags = GucFlags::default();
    GucRegistry::define_string_guc(
        c"mantle.compaction_databases",
        COMPACTION_DATABASES_MEANING,
        c"",
        &COMPACTION_DATABASES,
        GucContext::Sighup,
        flags,
    );
    GucRegistry::define_enum_guc(
        c"mantle.delta_records",
        DELTA_RECORDS_MEANING,
        DELTA_RECORDS_DETAIL,
        &DELTA_RECORDS,
        GucContext::Userset,
        flags,
    );
    for i in INTEGERS {
        GucRegistry::define_int_guc(i.name, i.meaning, i.detail, i.setting, i.min, i.max, GucContext::Sighup, flags);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_page_is_current() {
        let mut page =
            String::from("| setting | default | least, most | takes effect | meaning |\n|---|---|---|---|---|\n");
        let mut row = |name: &CStr, default: String, bounds: String, when: &str, meaning: &CStr, detail: &CStr| {
            let (name, meaning, detail) = (name.to_string_lossy(), meaning.to_string_lossy(), detail.to_string_lossy());
            let text = [meaning, detail].join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
            page.push_str(&format!("| `{name}` | {default} | {bounds} | {when} | {text} |\n"));
        };
        let (name, meaning) = (c"mantle.compaction_databases", COMPACTION_DATABASES_MEANING);
        row(name, "`*`".into(), String::new(), "on reload", meaning, c"");
        let (name, meaning, detail) = (c"mantle.delta_records", DELTA_RECORDS_MEANING, DELTA_RECORDS_DETAIL);
        row(name, "`auto`".into(), "`auto`, `always`, `never`".into(), "at once, in any session", meaning, detail);
        for i in INTEGERS {
            // SAFETY: nothing changes a setting outside of a server.
            let default = unsafe { *i.setting.as_ptr() };
            row(i.name, default.to_string(), format!("{}, {}", i.min, i.max), "on reload", i.meaning, i.detail);
        }
        mantle_types::pages::assert_section("settings.md", "extension", &page);
    }
}
