//! The extension's settings (GUCs). Units are in the names. Read by the worker, and by SQL through `current_setting`.

use std::ffi::CString;

use mantle_types::limits::TOMBSTONE_RETENTION_MIN_S;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};

/// How a change is added to its directory's counts (`sql/steps/apply_deltas.sql`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum DeltaRecords {
    /// In place if the attribute record is free, else as a delta record.
    #[name = c"auto"]
    Auto,
    /// Always as a delta record.
    #[name = c"always"]
    Always,
    /// In place, after waiting for the attribute record.
    #[name = c"never"]
    Never,
}

/// For the ablation: read by SQL.
pub static DELTA_RECORDS: GucSetting<DeltaRecords> = GucSetting::<DeltaRecords>::new(DeltaRecords::Auto);

/// See [`compaction_databases`].
static COMPACTION_DATABASES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c"*"));
/// Longest time between two rounds of the worker over all directories with delta records, and between looks for other work.
pub static COMPACTION_NAPTIME_MS: GucSetting<i32> = GucSetting::<i32>::new(1_000);
/// Most delta records folded, directories pruned or rows purged in one of the worker's transactions.
pub static COMPACTION_BATCH: GucSetting<i32> = GucSetting::<i32>::new(1_000);
/// How long an implicit directory stays after its last entry went.
pub static PRUNE_GRACE_MS: GucSetting<i32> = GucSetting::<i32>::new(5_000);
/// How long the answer to a request id is kept.
pub static REQUEST_RETENTION_S: GucSetting<i32> = GucSetting::<i32>::new(86_400);
/// Most answers to request ids that are kept, on one node; 0: any number.
pub static REQUEST_ROWS_MAX: GucSetting<i32> = GucSetting::<i32>::new(50_000_000);
/// How long tombstones and rename attempts are kept; longer than any request's deadline.
pub static TOMBSTONE_RETENTION_S: GucSetting<i32> = GucSetting::<i32>::new(86_400);
/// How long gateways may look up and acknowledge under what they read of an index group. Read with it, through SQL, and by
/// who has to wait it out: a group founded beside one that may live on, and each step of a namespace's move.
pub static EPOCH_LEASE_MS: GucSetting<i32> = GucSetting::<i32>::new(60_000);

/// Databases that get a worker.
pub enum Databases {
    /// All that have the extension (`*`).
    Every,
    /// These, comma separated. One that does not exist, or has no extension yet, is passed over and looked at again later.
    Named(Vec<String>),
}

impl Databases {
    /// Is a database of this name among them?
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Every => true,
            Self::Named(names) => names.iter().any(|named| named == name),
        }
    }
}

/// What `mantle.compaction_databases` says.
pub fn compaction_databases() -> Databases {
    let list = COMPACTION_DATABASES.get().and_then(|s| s.into_string().ok()).unwrap_or_default();
    let names: Vec<String> = list.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect();
    if names.iter().any(|name| name == "*") { Databases::Every } else { Databases::Named(names) }
}

/// Defines the settings. Called once, when the library is loaded.
pub fn define() {
    GucRegistry::define_string_guc(
        c"mantle.compaction_databases",
        c"Databases that get a compaction worker, comma separated; *: all that have the extension.",
        c"",
        &COMPACTION_DATABASES,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"mantle.delta_records",
        c"How changes are added to their directories' counts: auto, always or never by delta records.",
        c"",
        &DELTA_RECORDS,
        GucContext::Userset,
        GucFlags::default(),
    );
    let int = |name, short, setting, min, max| {
        GucRegistry::define_int_guc(name, short, c"", setting, min, max, GucContext::Sighup, GucFlags::default());
    };
    int(
        c"mantle.compaction_naptime_ms",
        c"Longest time between two rounds of the worker over all directories with delta records, and between looks for other work.",
        &COMPACTION_NAPTIME_MS,
        10,
        3_600_000,
    );
    int(c"mantle.compaction_batch", c"Most rows one transaction of the worker changes.", &COMPACTION_BATCH, 1, 100_000);
    int(
        c"mantle.epoch_lease_ms",
        c"How long gateways may look up under what they read of an index group; longer than a failover.",
        &EPOCH_LEASE_MS,
        2_000,
        600_000,
    );
    int(
        c"mantle.prune_grace_ms",
        c"How long an implicit directory stays after its last entry went.",
        &PRUNE_GRACE_MS,
        0,
        86_400_000,
    );
    int(
        c"mantle.request_retention_s",
        c"How long the answer to a request id is kept.",
        &REQUEST_RETENTION_S,
        60,
        31_536_000,
    );
    int(
        c"mantle.request_rows_max",
        c"Most answers to request ids that are kept, on one node; 0: any number.",
        &REQUEST_ROWS_MAX,
        0,
        i32::MAX,
    );
    int(
        c"mantle.tombstone_retention_s",
        c"How long tombstones and rename attempts are kept.",
        &TOMBSTONE_RETENTION_S,
        TOMBSTONE_RETENTION_MIN_S as i32,
        31_536_000,
    );
}
