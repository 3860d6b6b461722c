//! Named limits, unit last. Relations between them are asserted at compile time. SQL uses the same names:
//! `{KEY_BYTES_MAX}` in `sql/` becomes the number when the extension is built.

macro_rules! limits {
    ($($(#[$doc:meta])+ $name:ident: $type:ty = $value:expr;)+) => {
        $($(#[$doc])+ pub const $name: $type = $value;)+

        /// Every limit by its name, for the SQL that is rendered with them.
        pub const LIMITS: &[(&str, u64)] = &[$((stringify!($name), $name as u64)),+];
    };
}

limits! {
    /// Longest name of one directory or object, without the trailing slash, in bytes (as in POSIX `NAME_MAX`).
    NAME_BYTES_MAX: usize = 255;
    /// Longest key (path inside a namespace), in bytes (as in S3).
    KEY_BYTES_MAX: usize = 1024;
    /// Deepest path, in components. The deepest real namespace reported is 95 (Mantle, SOSP '25, section 3.1).
    PATH_DEPTH_MAX: usize = 128;
    /// The components that keys of a namespace may have at first: `key_levels` of `mantle.namespaces`.
    KEY_LEVELS_FIRST: usize = 16;
    /// The bytes that keys of a namespace may have at first: `key_bytes` of `mantle.namespaces`.
    KEY_BYTES_FIRST: usize = 128;
    /// So many entries below a directory that moves to a longer path are not read: the bound of the namespace's row decides (P55).
    MEASURED_ENTRIES_MAX: usize = 1000;
    /// Longest namespace (bucket) name, in bytes.
    NAMESPACE_BYTES_MAX: usize = 63;
    /// Shortest namespace (bucket) name, in bytes.
    NAMESPACE_BYTES_MIN: usize = 3;
    /// Smallest id of a directory or object. Below are the super-root, the trash, and room for more of their kind.
    ID_MIN: i64 = 1024;
    /// Most ids of one block.
    ID_BLOCK_MAX: i64 = 1 << 24;
    /// All bits of a mode: read, write and search for owner, group and others, and the sticky bit.
    MODE_MAX: u32 = 0o1777;
    /// All bits that a namespace's umask may take away: the owner's stay, so a directory's maker can make entries in it.
    UMASK_MAX: u32 = 0o077;
    /// The umask of a new namespace: what is made in it is private.
    UMASK_FIRST: u32 = 0o077;
    /// Most directories that the index checks for a recursive removal by somebody else than the namespace's owner. Checking
    /// them takes under 50 ms of applying.
    CHECKED_DIRECTORIES_MAX: usize = 100_000;
    /// Permission bits of an imported object's mode: read and write, never execute.
    IMPORTED_MODE_MAX: u32 = 0o666;
    /// Largest object, in bytes. The sum of a batch cannot overflow.
    OBJECT_BYTES_MAX: u64 = 1 << 48;
    /// Longest data locator, in bytes. Locators are in a PostgreSQL index, which refuses values over a third of a page.
    LOCATOR_BYTES_MAX: usize = 2048;
    /// Largest object whose bytes may be inside PostgreSQL, in bytes: a full batch of them is 4 MiB.
    INLINE_BYTES_MAX: usize = 16_384;
    /// Most segments of a volume. With the usual 256 MiB each these are 4 EiB.
    VOLUME_SEGMENTS_MAX: i64 = 1 << 24;
    /// Most segments of a call that leases or admits them: each is a latch.
    SEGMENTS_PER_CALL_MAX: usize = 1000;
    /// How long a freed row that nobody takes is kept, in seconds. After that, a scan of the segment finds that its
    /// blocks are free.
    FREED_RETENTION_S: u64 = 14 * 24 * 3600;
    /// The longest delay before freed blocks are used again, in milliseconds.
    REUSE_DELAY_MAX_MS: u64 = 7 * 24 * 3600 * 1000;
    /// Most bytes of the names and values of an entry's user metadata (as in S3).
    USER_METADATA_BYTES_MAX: usize = 2048;
    /// Most elements of one SQL batch.
    BATCH_ELEMENTS_MAX: usize = 16_384;
    /// Most latches that one batch takes: 512 entries in as many directories. PostgreSQL's lock table needs room for them in
    /// every session (`max_locks_per_transaction`): with its default, 1,000 latches each exhausted it at 16 sessions.
    BATCH_LATCHES_MAX: usize = 1024;
    /// Most operations one change-stream message carries.
    MESSAGE_OPS_MAX: usize = 65_536;
    /// Most keys one listing page returns (as in S3).
    LIST_KEYS_MAX: usize = 1000;
    /// How long a resolved id may be used in changes, in seconds (P8). If a body takes longer to arrive, its path is resolved
    /// again.
    LEASE_S: u64 = 20;
    /// How long tombstones and abort records are kept at least, in seconds. It covers a lease, the wait for latches after the
    /// check of the lease, and the clock difference between a primary and its promoted standby.
    TOMBSTONE_RETENTION_MIN_S: u64 = 60;
}

const _: () = assert!(TOMBSTONE_RETENTION_MIN_S >= 3 * LEASE_S);
const _: () = assert!(OBJECT_BYTES_MAX <= i64::MAX as u64 / BATCH_ELEMENTS_MAX as u64);
const _: () = assert!(SEGMENTS_PER_CALL_MAX <= BATCH_LATCHES_MAX);
const _: () = assert!(REUSE_DELAY_MAX_MS < FREED_RETENTION_S * 1000);
const _: () = assert!(NAME_BYTES_MAX < KEY_BYTES_MAX);
const _: () = assert!(PATH_DEPTH_MAX <= KEY_BYTES_MAX / 2);
const _: () = assert!(BATCH_ELEMENTS_MAX <= MESSAGE_OPS_MAX);
