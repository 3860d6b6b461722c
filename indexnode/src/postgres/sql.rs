//! Every SQL string of the IndexNode.

use mantle_types::NamespaceId;

/// Identity of the server that the control session is connected to: system identifier and timeline. The control file's
/// timeline lags behind a promotion until the next checkpoint; a WAL file's name does not.
pub const SYSTEM: &str = "SELECT system_identifier, ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(\
                          pg_catalog.pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer \
                          FROM pg_catalog.pg_control_system()";

/// The nodes whose change streams together tell every change of a directory.
pub const INDEX_SOURCES: &str = "SELECT source, host, port FROM mantle.index_sources()";

/// Are there to be synchronous standbys, and up to where have all that are connected flushed the WAL?
pub const STANDBY_FLUSH: &str = "SELECT required, flushed FROM mantle.standby_flush()";

/// What is durable on this server.
pub const FLUSHED: &str = "SELECT pg_catalog.pg_current_wal_flush_lsn()";

/// The group's row: epoch, cluster and slot.
pub const INDEX_GROUP: &str = "SELECT epoch, cluster_id, slot_name FROM mantle.index_group($1)";

/// How long gateways look up, and acknowledge, under what they read of a group.
pub const EPOCH_LEASE: &str = "SELECT pg_catalog.current_setting('mantle.epoch_lease_ms')::bigint";

/// Raises the group's epoch if it still is the expected one.
pub const RAISE_EPOCH: &str = "SELECT mantle.raise_epoch($1, $2, $3)";

/// The key by which the group signs what it has prepared.
pub const PREPARE_KEY: &str = "SELECT mantle.prepare_key($1)";

/// Records that a rename's attempt must not commit any more; says which came first.
pub const ABORT_RENAME: &str = "SELECT mantle.abort_rename($1, $2, $3, $4)";

/// State of a logical slot of this database.
pub const SLOT: &str = "SELECT active_pid, wal_status, confirmed_flush_lsn FROM pg_catalog.pg_replication_slots \
                        WHERE slot_name = $1 AND database = pg_catalog.current_database() AND plugin = 'pgoutput'";

/// Is there a bound on the WAL that a slot keeps when nobody reads it?
pub const SLOTS_ARE_BOUNDED: &str = "SELECT pg_catalog.current_setting('max_slot_wal_keep_size') <> '-1'";

/// Ends the session that holds the slot; of the same role, so no special right is needed. Waits for its end. The types choose
/// PostgreSQL's function: Citus has one of that name for its global process ids.
pub const TERMINATE: &str = "SELECT pg_catalog.pg_terminate_backend($1::integer, 5000::bigint)";

/// Drops a slot, if it is there.
pub const DROP_SLOT: &str = "SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM \
                             pg_catalog.pg_replication_slots WHERE slot_name = $1";

/// The directories of namespaces, for a copy. The casts fix the binary format that is read; COPY takes no parameters.
pub fn copy_directories(namespaces: &[NamespaceId]) -> String {
    let list: Vec<String> = namespaces.iter().map(NamespaceId::to_string).collect();
    format!(
        "COPY (SELECT pid::bigint, id::bigint, version::bigint, owner::integer, grp::integer, mode::integer, entry::text \
         FROM mantle.directories WHERE ns = ANY ('{{{}}}'::bigint[])) TO STDOUT (FORMAT binary)",
        list.join(",")
    )
}

/// The group's namespaces, does it serve them, and how far are their moves?
pub const INDEX_NAMESPACES: &str = "SELECT ns, is_served, move_phase, moves FROM mantle.index_namespaces($1)";

/// The namespaces of what is in the trash.
pub const TRASH_NAMESPACES: &str = "SELECT ns FROM mantle.trash_namespaces() AS ns";

/// The groups of some namespaces, and have they ever moved?
pub const ASSIGNMENTS: &str = "SELECT ns, index_group, has_moved FROM mantle.assignments($1)";

/// Takes the next step of a namespace's move to the group.
pub const ADVANCE_MOVE: &str = "SELECT mantle.advance_move($1, $2, $3)";

/// Another number than before: assignments have changed.
pub const ASSIGNMENT_CHANGES: &str = "SELECT mantle.all_assignment_changes()";

/// Ids of directories in order, and their namespaces, for the comparison with the index.
pub const DIRECTORIES_AFTER: &str = "SELECT id, ns FROM mantle.directories WHERE id > $1 ORDER BY id LIMIT $2";

/// What the index should know of directories, if it has their namespaces.
pub const DIRECTORIES: &str = "SELECT id, pid, version, name, ns FROM mantle.directories WHERE id = ANY ($1)";

/// How many there may be: entries of the index that has directories only. 0: nobody has counted.
pub const DIRECTORIES_EXPECTED: &str = "SELECT greatest(max(c.reltuples), 0)::bigint FROM pg_catalog.pg_class c \
                                        WHERE c.oid = pg_catalog.to_regclass('mantle.meta_directory_id')";

/// Begins a transaction for a copy without a snapshot of its own.
pub const BEGIN_COPY: &str = "BEGIN READ ONLY";

/// In such a transaction: directories are found by the index that has no others, on every node. Of a table that nobody has
/// analysed, as after a load, PostgreSQL supposes that it is of directories, mostly, and reads all objects for them.
pub const BY_INDEX: &str = "SET LOCAL citus.propagate_set_commands = 'local'; SET LOCAL enable_seqscan = off";

/// Ends it.
pub const COMMIT: &str = "COMMIT";

/// A position, and a transaction id that is above that of every transaction with a commit record below it: this statement's own,
/// assigned after the position was taken. (A snapshot's `xmax` is not: it is that of the newest one that has ended, and one
/// with a higher id may have written its commit record and not ended yet.)
pub const CUT: &str = "SELECT pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.pg_current_xact_id()::text::bigint";

/// Has every transaction ended that is below an id? Those that wait for a standby have not, though they are in the WAL.
pub const HAVE_ENDED: &str = "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::bigint >= $1";

/// Publication of the change stream; empty, so that messages alone are sent.
pub const PUBLICATION: &str = "mantle_stream";

/// Creates the slot, on a replication connection, which exports the snapshot of its consistent point.
pub fn create_slot(slot: &str) -> String {
    format!("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput (SNAPSHOT 'export')", quote_identifier(slot))
}

/// Begins a transaction that sees an exported snapshot.
pub fn begin_with_snapshot(snapshot: &str) -> String {
    let literal = snapshot.replace('\'', "''");
    format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{literal}'")
}

fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
