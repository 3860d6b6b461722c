//! Every SQL string of the IndexNode. [`Statements`](super::upstream::Statements) says what each is for.

use std::time::Duration;

use mantle_types::NamespaceId;

/// System identifier and timeline of the server, and when it was started in microseconds since 1970. The timeline comes from a
/// WAL file's name, because the control file's lags behind a promotion until the next checkpoint.
pub(super) const SYSTEM: &str = "SELECT system_identifier, ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(\
                          pg_catalog.pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer, \
                          (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::bigint \
                          FROM pg_catalog.pg_control_system()";
/// When the server was started, in microseconds since 1970; for a walsender.
pub(super) const STARTED: &str = "SELECT (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::bigint::pg_catalog.text";
/// The same, from a server that is no standby.
pub(super) const PRIMARY_STARTED: &str = "SELECT (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) \
                          OPERATOR(pg_catalog.*) 1000000)::bigint::pg_catalog.text, pg_catalog.pg_current_wal_flush_lsn()";
pub(super) const INDEX_SOURCES: &str = "SELECT source, host, port FROM mantle.index_sources()";
pub(super) const STANDBY_FLUSH: &str = "SELECT required, flushed FROM mantle.standby_flush()";
pub(super) const FLUSHED: &str = "SELECT pg_catalog.pg_current_wal_flush_lsn()";
pub(super) const INDEX_GROUP: &str = "SELECT epoch, cluster_id, slot_name FROM mantle.index_group($1)";
pub(super) const EPOCH_LEASE: &str = "SELECT pg_catalog.current_setting('mantle.epoch_lease_ms')::bigint";
pub(super) const RAISE_EPOCH: &str = "SELECT mantle.raise_epoch($1, $2, $3)";
pub(super) const PREPARE_KEY: &str = "SELECT mantle.prepare_key($1)";
pub(super) const REPORT_INDEX_REPLICAS: &str = "SELECT mantle.report_index_replicas($1, $2)";
pub(super) const ABORT_RENAME: &str = "SELECT mantle.abort_rename($1, $2, $3, $4)";
/// A slot, and whose it is if not this database's.
pub(super) const SLOT: &str = "SELECT active_pid, wal_status, confirmed_flush_lsn, CASE WHEN database IS NULL THEN 'a standby' \
                        WHEN database <> pg_catalog.current_database() THEN 'database ' || database \
                        WHEN plugin <> 'pgoutput' THEN 'another program' END FROM pg_catalog.pg_replication_slots \
                        WHERE slot_name = $1";
pub(super) const SLOTS_ARE_BOUNDED: &str = "SELECT pg_catalog.current_setting('max_slot_wal_keep_size') <> '-1'";
/// Ends the session that holds the slot, and waits for its end. It has the same role, so no special right is needed. The types
/// select PostgreSQL's function: Citus has one of the same name for its global process ids.
pub(super) const TERMINATE: &str = "SELECT pg_catalog.pg_terminate_backend($1::integer, 5000::bigint)";
pub(super) const DROP_SLOT: &str = "SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM \
                             pg_catalog.pg_replication_slots WHERE slot_name = $1 \
                             AND database = pg_catalog.current_database()";
/// Transactions with an id that are older than a number of seconds; transactions of the server's own sessions without
/// an id delay nobody.
pub(super) const OPEN_TRANSACTIONS: &str = "SELECT pg_catalog.concat_ws(', ', culprit, detail) FROM mantle.open_transactions() \
                             WHERE has_id AND pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) since) \
                             OPERATOR(pg_catalog.>) $1::pg_catalog.float8 \
                             ORDER BY since LIMIT 3";
pub(super) const INDEX_NAMESPACES: &str = "SELECT ns, is_served, move_phase, moves FROM mantle.index_namespaces($1)";
pub(super) const TRASH_NAMESPACES: &str = "SELECT ns FROM mantle.trash_namespaces() AS ns";
pub(super) const ASSIGNMENTS: &str = "SELECT ns, index_group, has_moved FROM mantle.assignments($1)";
pub(super) const ADVANCE_MOVE: &str = "SELECT mantle.advance_move($1, $2, $3)";
pub(super) const ASSIGNMENT_CHANGES: &str = "SELECT mantle.all_assignment_changes()";
pub(super) const DIRECTORIES_AFTER: &str = "SELECT id, ns FROM mantle.directories WHERE id > $1 ORDER BY id LIMIT $2";
pub(super) const DIRECTORIES: &str = "SELECT id, pid, version, name, ns FROM mantle.directories WHERE id = ANY ($1)";
/// The estimated number of directories: entries of the PostgreSQL index that has only directories; 0 without statistics.
pub(super) const DIRECTORIES_EXPECTED: &str = "SELECT greatest(max(c.reltuples), 0)::bigint FROM pg_catalog.pg_class c \
                                        WHERE c.oid = pg_catalog.to_regclass('mantle.meta_directory_id')";
pub(super) const BEGIN_COPY: &str = "BEGIN READ ONLY";
/// In the copy's transaction, on every node: makes the copy use the PostgreSQL index that has only directories. For a table without
/// statistics, as after a load, PostgreSQL assumes that most rows are directories, and would read all objects. A lock on the
/// table ends the copy, which begins again.
pub(super) const BY_INDEX: &str = "SET LOCAL citus.propagate_set_commands = 'local'; SET LOCAL enable_seqscan = off; \
                             SET LOCAL lock_timeout = '30s'";
pub(super) const COMMIT: &str = "COMMIT";
/// A position, and a transaction id above that of every transaction with a commit record below the position: the statement's
/// own id, assigned after the position was read. A snapshot's `xmax` would not do: a transaction with a higher id may have
/// written its commit record and not ended yet.
pub const CUT: &str = "SELECT pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.pg_current_xact_id()::text::bigint";
/// Whether every transaction below an id has ended. One that waits for a standby has not, though its commit is in the WAL.
pub const HAVE_ENDED: &str = "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::bigint >= $1";
/// The publication of the change stream; empty, so that only messages are sent.
pub(super) const PUBLICATION: &str = "mantle_stream";

/// Creates the slot on a replication connection, and exports the snapshot of its consistent point.
pub(super) fn create_slot(slot: &str) -> String {
    format!("CREATE_REPLICATION_SLOT \"{}\" LOGICAL pgoutput (SNAPSHOT 'export')", slot.replace('"', "\"\""))
}

/// Bounds the wait for each lock, on a replication connection too: the creation of a slot waits for other transactions by locks.
pub(super) fn lock_timeout(limit: Duration) -> String {
    format!("SET lock_timeout = {}", limit.as_millis())
}

pub(super) fn begin_with_snapshot(snapshot: &str) -> String {
    let literal = snapshot.replace('\'', "''");
    format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{literal}'")
}

/// The COPY of the directories of namespaces. The casts fix the binary format; COPY takes no parameters.
pub(super) fn copy_directories(namespaces: &[NamespaceId]) -> String {
    let list: Vec<String> = namespaces.iter().map(NamespaceId::to_string).collect();
    format!(
        "COPY (SELECT pid::bigint, id::bigint, version::bigint, owner::integer, grp::integer, mode::integer, entry::text \
         FROM mantle.directories WHERE ns = ANY ('{{{}}}'::bigint[])) TO STDOUT (FORMAT binary)",
        list.join(",")
    )
}
