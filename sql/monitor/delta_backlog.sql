--- monitor: The rows of mantle.delta_backlog
-- A function that runs as the owner, because on Citus a view's owner does not count on the shards.
CREATE FUNCTION mantle.delta_backlog_now() RETURNS TABLE (ns bigint, pid bigint, deltas bigint, oldest timestamptz)
LANGUAGE plpgsql STABLE {as_owner} AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT m.ns, m.pid, count(*), min(m.modified) FROM mantle.meta m WHERE m.ts > 0 GROUP BY m.ns, m.pid;
END $$;

--- Delta records that wait for compaction, by directory, the hottest first
CREATE VIEW mantle.delta_backlog AS
SELECT d.ns, d.pid, d.deltas, d.oldest, now() - d.oldest AS age FROM mantle.delta_backlog_now() AS d
 ORDER BY d.deltas DESC, d.pid;
GRANT SELECT ON mantle.delta_backlog TO mantle_monitor;
COMMENT ON COLUMN mantle.delta_backlog.deltas IS 'Delta records; each is one change that did not wait for the counts';
COMMENT ON COLUMN mantle.delta_backlog.oldest IS 'When the first of them was written';

--- The launcher, and the background worker of each database
-- pg_stat_activity shows a member of pg_monitor no more than this view shows.
CREATE VIEW mantle.compaction_workers AS
SELECT a.datname AS database, a.pid, a.backend_start AS started, a.state, a.query AS step, a.wait_event_type,
       a.wait_event
  FROM pg_catalog.pg_stat_activity a WHERE a.backend_type IN ('mantle worker', 'mantle launcher');
GRANT SELECT ON mantle.compaction_workers TO mantle_monitor;
