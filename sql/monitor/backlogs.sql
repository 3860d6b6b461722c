-- Of tables that may be large: PostgreSQL's own estimate of the rows, and the oldest by index.
CREATE VIEW mantle.backlogs AS
SELECT 'request ids' AS backlog, c.reltuples::bigint AS rows_estimate, (SELECT min(r.created) FROM mantle.requests r) AS oldest,
       current_setting('mantle.request_retention_s')::int * interval '1 second' AS kept
  FROM pg_catalog.pg_class c WHERE c.oid = 'mantle.requests'::regclass
UNION ALL
SELECT 'tombstones', c.reltuples::bigint, (SELECT min(m.created) FROM mantle.meta m WHERE m.removed),
       current_setting('mantle.tombstone_retention_s')::int * interval '1 second'
  FROM pg_catalog.pg_class c WHERE c.oid = 'mantle.meta_tombstone'::regclass
UNION ALL
SELECT 'rename attempts', c.reltuples::bigint, (SELECT min(a.created) FROM mantle.rename_attempts a),
       current_setting('mantle.tombstone_retention_s')::int * interval '1 second'
  FROM pg_catalog.pg_class c WHERE c.oid = 'mantle.rename_attempts'::regclass
UNION ALL
SELECT 'prune queue', c.reltuples::bigint, (SELECT min(q.queued) FROM mantle.prune_queue q),
       current_setting('mantle.prune_grace_ms')::int * interval '1 millisecond'
  FROM pg_catalog.pg_class c WHERE c.oid = 'mantle.prune_queue'::regclass;
GRANT SELECT ON mantle.backlogs TO mantle_monitor;
COMMENT ON VIEW mantle.backlogs IS 'What the worker purges or looks at: how much there is, how old, and how long it may be kept';
COMMENT ON COLUMN mantle.backlogs.rows_estimate IS 'As of the last vacuum or analyze; -1 before the first';
COMMENT ON COLUMN mantle.backlogs.kept IS 'Older than this, it should be gone: if it is not, the worker is behind or does not run';

GRANT SELECT ON mantle.operations TO mantle_monitor;
