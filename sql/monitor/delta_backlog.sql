-- What compaction has before it. Reads the index of delta records, which is small when all is well.
CREATE VIEW mantle.delta_backlog AS
SELECT m.ns, m.pid, count(*) AS deltas, min(m.modified) AS oldest, now() - min(m.modified) AS age
  FROM mantle.meta m WHERE m.ts > 0 GROUP BY m.ns, m.pid ORDER BY count(*) DESC, m.pid;
GRANT SELECT ON mantle.delta_backlog TO mantle_monitor;
COMMENT ON VIEW mantle.delta_backlog IS 'Delta records that wait for compaction, by directory, the hottest first';
COMMENT ON COLUMN mantle.delta_backlog.deltas IS 'Delta records, each one change that did not wait';
COMMENT ON COLUMN mantle.delta_backlog.oldest IS 'When the first of them was written';

-- The workers of all databases: pg_stat_activity shows a member of pg_monitor no more than this view shows anybody.
CREATE VIEW mantle.compaction_workers AS
SELECT a.datname AS database, a.pid, a.backend_start AS started, a.state, a.query AS step, a.wait_event_type, a.wait_event
  FROM pg_catalog.pg_stat_activity a WHERE a.backend_type IN ('mantle worker', 'mantle launcher');
GRANT SELECT ON mantle.compaction_workers TO mantle_monitor;
COMMENT ON VIEW mantle.compaction_workers IS 'The launcher, and the background worker of each database';
