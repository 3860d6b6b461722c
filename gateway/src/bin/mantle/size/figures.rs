//! The figures of `mantle size`, each with its source. docs/sizing.md is generated from them.

/// Bytes of a GiB.
pub const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
#[cfg(test)]
const MIB: f64 = 1024.0 * 1024.0;

/// A figure, for the page.
#[cfg(test)]
pub struct Figure {
    pub name: &'static str,
    pub value: f64,
    pub meaning: &'static str,
    pub source: &'static str,
}

#[cfg(test)]
impl Figure {
    /// The value, in MiB or GiB where it is so large a number of bytes.
    pub fn shown(&self) -> String {
        let is_bytes = self.name.contains("_BYTES") || self.name.ends_with("SIZE") || self.name.starts_with("SHARED");
        match self.value {
            value if is_bytes && value >= GIB => format!("{} GiB", value / GIB),
            value if is_bytes && value >= MIB => format!("{} MiB", value / MIB),
            value => value.to_string(),
        }
    }
}

macro_rules! figures {
    ($($name:ident $value:expr, $meaning:literal, $source:literal;)*) => {
        $(#[doc = $meaning] pub const $name: f64 = $value;)*
        /// All of them.
        #[cfg(test)]
        pub const FIGURES: &[Figure] =
            &[$(Figure { name: stringify!($name), value: $name, meaning: $meaning, source: $source },)*];
    };
}

figures! {
    OBJECT_ROW_BYTES 760.0, "Row of an object with its PostgreSQL indexes: a name of 25 bytes, an etag, a content type, a locator. An imported object has only the name, and takes half.", "`tests/e2e/test_sizing.py`: 390–730, most where names go between others";
    DIRECTORY_ROW_BYTES 420.0, "Row of a directory with its PostgreSQL indexes, and its attribute record.", "`tests/e2e/test_sizing.py`: 130–250 for the row, the attribute record of one that has entries 170";
    REQUEST_ROW_BYTES 230.0, "Answer to a request.", "`tests/e2e/test_sizing.py`: 200–215";
    REQUEST_RETENTION_SECONDS 86400.0, "How long an answer is kept, in seconds.", "`mantle.request_retention_s`";
    REQUEST_ROWS_MOST 50e6, "How many answers a server keeps.", "`mantle.request_rows_max`";
    PUT_WAL_BYTES 2100.0, "WAL of a put of a new object, with the full-page images after a checkpoint.", "`tests/e2e/test_sizing.py`: 1,230–2,070";
    MKDIR_WAL_BYTES 1800.0, "WAL of a mkdir, with them too.", "`tests/e2e/test_sizing.py`: 1,370–1,480";
    MAX_WAL_SIZE 4.0 * GIB, "WAL between two checkpoints.", "`max_wal_size` in `patroni/config/mantle.conf`";
    MAX_SLOT_WAL_KEEP_SIZE 8.0 * GIB, "WAL kept for an index, or a standby, that is away.", "`max_slot_wal_keep_size` in `patroni/config/mantle.conf`";
    INDEX_SESSIONS 6.0, "Sessions of an index group's leader on a node; on Citus also those that reach it through the coordinator.", "`tests/cluster/test_sizing.py`: 4";
    INDEX_WALSENDERS 2.0, "Walsenders of an index group.", "its leader reads a slot, and samples the position (P58)";
    SPARE_WALSENDERS 6.0, "Walsenders for base backups, a new standby, and moves of shards.", "two, one and three at a time";
    PATRONI_SESSIONS 4.0, "Sessions of Patroni: heartbeat, REST, Citus, and one of another server.", "`tests/cluster/test_sizing.py`: 3";
    RESERVED_SESSIONS 23.0, "Ten for analysts and imports, ten for DBAs and monitoring, three of `superuser_reserved_connections`.", "a choice";
    SHARED_BUFFERS_LEAST 128.0 * 1024.0 * 1024.0, "The least `shared_buffers`.", "PostgreSQL's default";
    LOCKS_PER_TRANSACTION 1024.0, "Lock-table entries for each transaction.", "`max_locks_per_transaction` in `patroni/config/mantle.conf`";
    OTHER_BACKENDS 52.0, "Processes beside the sessions for which the lock table has entries: workers, walsenders, autovacuum.", "`max_worker_processes`, `max_wal_senders` in `patroni/config/patroni.yml`";
    LOCK_BYTES 420.0, "Shared memory of an entry of the lock table.", "`shared_memory_size` of a server with 200 connections: 387 MiB";
    SHARED_OTHER_BYTES 104.0 * 1024.0 * 1024.0, "Shared memory for `wal_buffers` (64 MiB), states of transactions (from 17 on up to 24 MiB), and the rest.", "`pg_shmem_allocations`";
    SHARED_BYTES_PER_BUFFER_BYTE 0.01, "Shared memory that describes `shared_buffers`, for each of its bytes.", "`pg_shmem_allocations`: 1 MiB for 128 MiB";
    SESSION_BYTES 10.0 * 1024.0 * 1024.0, "Private memory of a session. Most of it describes the shards that the session has opened.", "`tests/cluster/test_sizing.py`: 5–8 MiB";
    PATRONI_BYTES 64.0 * 1024.0 * 1024.0, "Patroni's process.", "`tests/cluster/test_sizing.py`: 55 MiB";
    PGBOUNCER_BYTES 16.0 * 1024.0 * 1024.0, "PgBouncer's process.", "`tests/cluster/test_sizing.py`: 9 MiB";
    INDEXNODE_BYTES 72.0 * 1024.0 * 1024.0, "An IndexNode without directories.", "[docs/benchmarks.md](benchmarks.md): 56 MB; 61 MiB on a cluster under load";
    INDEXNODE_BYTES_PER_DIRECTORY 112.0, "Growth of an IndexNode's resident memory for each directory.", "[bench-load-lookup-list-rename-mkdir.md](bench-load-lookup-list-rename-mkdir.md): 108–112; [bench-load-rebuild-analysts.md](bench-load-rebuild-analysts.md): 74–80";
    SNAPSHOT_BYTES_PER_DIRECTORY 80.0, "A directory in an IndexNode's snapshot or log.", "77 in the log of an import; [formats.md](formats.md)";
    INDEX_LOG_BYTES 512.0 * 1024.0 * 1024.0, "An IndexNode's log. At half of it a snapshot is built, and then the older half is removed.", "`indexnode/src/raft/log_limit.rs`";
    GATEWAY_BYTES 64.0 * 1024.0 * 1024.0, "A gateway.", "`tests/cluster/test_sizing.py`: 15 MiB under a load of directories";
    UPLOAD_BYTES 8.0 * 1024.0 * 1024.0, "An upload that a gateway receives.", "a piece of 1 MiB (`gateway/src/data/files/mod.rs`), and buffers";
    VOLUME_GROW_SHARE 0.85, "How much of a volume is used when it grows.", "`volumes.grow_percent`";
    VOLUME_GROWTH_SEGMENTS 4.0, "By how many segments it grows.", "`volumes.growth_segments`";
    LOCATOR_BYTES 200.0, "Memory for a locator of the segment that a gateway reads at its start.", "[bench-volume-size.md](bench-volume-size.md): 146–163";
    LOCATORS_PER_SECOND 400e3, "Locators that a gateway reads a second at its start.", "[bench-volume-size.md](bench-volume-size.md): 765,000–879,000; other machines are slower";
    ETCD_BYTES 384.0 * 1024.0 * 1024.0, "An etcd member. Its database is memory-mapped, and its quota bounds it.", "`quota-backend-bytes` in `patroni/config/etcd.yml`; `tests/cluster/test_sizing.py`: 47 MiB, and 270 after it had been filled";
}
