-- What survives a failover: the WAL that every standby has flushed which may be promoted now. Those are the synchronous ones:
-- PostgreSQL itself says which of the names in synchronous_standby_names they are. `required`: there are to be some; then
-- `flushed` is NULL while none is connected, and no commit is acknowledged.
-- (A reader of a logical slot may match a name too, but it cannot be promoted.)
-- SECURITY DEFINER: pg_stat_replication shows positions to members of pg_monitor only.
CREATE FUNCTION mantle.standby_flush(OUT required boolean, OUT flushed pg_lsn)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT current_setting('synchronous_standby_names') <> '',
           min(r.flush_lsn) FILTER (WHERE r.sync_state IN ('sync', 'quorum') AND s.slot_type IS DISTINCT FROM 'logical')
      FROM pg_stat_replication r LEFT JOIN pg_replication_slots s ON s.active_pid = r.pid
$$;
COMMENT ON FUNCTION mantle.standby_flush IS
    'Are there to be synchronous standbys, and up to where have all that are connected flushed the WAL';
GRANT EXECUTE ON FUNCTION mantle.standby_flush TO mantle_index, mantle_monitor;
