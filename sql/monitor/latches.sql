--- Latches that are held or waited for: by which session, on what, and behind whom
-- Explains the numbers of our lock classes in pg_locks (extension/src/steps/latch.rs).
CREATE VIEW mantle.latches AS
SELECT l.pid AS backend, a.usename AS role, a.application_name AS application,
       CASE l.objsubid WHEN 19713 THEN 'directory' WHEN 19714 THEN 'name' WHEN 19715 THEN 'epoch'
                       WHEN 19716 THEN 'allocation' WHEN 19718 THEN 'moves' WHEN 19719 THEN 'segment' END AS class,
       (l.classid::bigint << 32) | l.objid::bigint AS key, l.mode = 'ExclusiveLock' AS exclusive, l.granted,
       l.waitstart AS waits_since, pg_catalog.pg_blocking_pids(l.pid) AS blocked_by
  FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.objsubid IN (19713, 19714, 19715, 19716, 19718, 19719)
   AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database());
GRANT SELECT ON mantle.latches TO mantle_monitor;
COMMENT ON COLUMN mantle.latches.class IS
    'directory, name (a hash of directory and name), epoch (of an index group), allocation, moves (of objects), or segment';
COMMENT ON COLUMN mantle.latches.key IS
    'The directory''s id, the name''s hash, the index group, or 2^32 times the volume plus the segment';
