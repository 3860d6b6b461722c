--- The replication slot of each index group: whether it exists, whether it is read, and its lag
-- A slot that is missing, belongs to another database, or has no reader delays the index group or has lost changes
-- that it needs.
CREATE VIEW mantle.index_slots AS
SELECT g.index_group, g.epoch, g.slot_name, s.slot_name IS NOT NULL AS exists, s.active, s.active_pid, s.wal_status,
       pg_catalog.pg_wal_lsn_diff(p.lsn, s.confirmed_flush_lsn) AS lag_bytes,
       pg_catalog.pg_wal_lsn_diff(p.lsn, s.restart_lsn) AS retained_bytes, s.safe_wal_size
  FROM (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                    ELSE pg_catalog.pg_current_wal_lsn() END) AS p(lsn)
 CROSS JOIN mantle.index_groups g
  LEFT JOIN pg_catalog.pg_replication_slots s
       ON s.slot_name = g.slot_name AND s.database = pg_catalog.current_database();
GRANT SELECT ON mantle.index_slots TO mantle_monitor;
COMMENT ON COLUMN mantle.index_slots.lag_bytes IS 'WAL that the group has not confirmed, in bytes';
COMMENT ON COLUMN mantle.index_slots.retained_bytes IS 'WAL that the server keeps for the slot, in bytes';
COMMENT ON COLUMN mantle.index_slots.safe_wal_size IS
    'Bytes of WAL until max_slot_wal_keep_size invalidates the slot, and the index must be rebuilt';
