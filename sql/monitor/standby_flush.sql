--- index, monitor: Whether synchronous standbys are required, and up to where all connected ones have flushed the WAL
-- Up to there the WAL survives a failover, because only synchronous standbys may be promoted. If some are required and
-- none is connected, `flushed` is NULL, and no commit is acknowledged. (A reader of a logical slot may match a name in
-- synchronous_standby_names too, but cannot be promoted.)
-- SECURITY DEFINER, because pg_stat_replication shows positions only to members of pg_monitor.
CREATE FUNCTION mantle.standby_flush(OUT required boolean, OUT flushed pg_lsn) LANGUAGE sql VOLATILE {as_owner} AS $$
    SELECT current_setting('synchronous_standby_names') <> '',
           min(r.flush_lsn) FILTER (WHERE r.sync_state IN ('sync', 'quorum') AND s.slot_type IS DISTINCT FROM 'logical')
      FROM pg_stat_replication r LEFT JOIN pg_replication_slots s ON s.active_pid = r.pid
$$;
