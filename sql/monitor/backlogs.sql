-- PostgreSQL's own estimate of a table's rows, or of an index's, on this node: on Citus, of its shards that are here. -1: none
-- was vacuumed or analyzed yet.
CREATE FUNCTION mantle.local_rows_estimate(p_table text, p_index text) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT mantle.is_distributed() THEN
        RETURN (SELECT c.reltuples::bigint FROM pg_class c WHERE c.oid = format('mantle.%I', coalesce(p_index, p_table))::regclass);
    END IF;
    RETURN (SELECT coalesce(sum(c.reltuples::bigint) FILTER (WHERE c.reltuples >= 0), -1)::bigint
              FROM pg_dist_shard s JOIN pg_dist_placement p ON p.shardid = s.shardid
              JOIN pg_dist_local_group l ON l.groupid = p.groupid
              JOIN pg_class c ON c.relnamespace = 'mantle'::regnamespace AND c.relname = coalesce(p_index, p_table) || '_' || s.shardid
             WHERE s.logicalrelid = format('mantle.%I', p_table)::regclass);
END $$;
COMMENT ON FUNCTION mantle.local_rows_estimate(text, text) IS 'PostgreSQL''s estimate of rows, on this node';
REVOKE ALL ON FUNCTION mantle.local_rows_estimate(text, text) FROM PUBLIC;

-- As the owner, who may ask the other nodes of a cluster.
CREATE FUNCTION mantle.rows_estimate(p_table text, p_index text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT mantle.is_distributed() THEN
        RETURN mantle.local_rows_estimate(p_table, p_index);
    END IF;
    RETURN (SELECT coalesce(sum(r.result::bigint) FILTER (WHERE r.success AND r.result <> '-1'), -1)
              FROM run_command_on_all_nodes(format('SELECT mantle.local_rows_estimate(%L, %L)', p_table, p_index)) AS r);
END $$;
COMMENT ON FUNCTION mantle.rows_estimate(text, text) IS 'PostgreSQL''s estimate of rows, on all nodes';
REVOKE ALL ON FUNCTION mantle.rows_estimate(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.rows_estimate(text, text) TO mantle_monitor;

-- Of tables that may be large: PostgreSQL's own estimate of the rows, and the oldest by index.
CREATE VIEW mantle.backlogs AS
SELECT 'request ids' AS backlog, mantle.rows_estimate('requests', NULL) AS rows_estimate, (SELECT min(r.created) FROM mantle.requests r) AS oldest,
       current_setting('mantle.request_retention_s')::int * interval '1 second' AS kept
UNION ALL
SELECT 'tombstones', mantle.rows_estimate('meta', 'meta_tombstone'), (SELECT min(m.created) FROM mantle.meta m WHERE m.removed),
       current_setting('mantle.tombstone_retention_s')::int * interval '1 second'
UNION ALL
SELECT 'rename attempts', mantle.rows_estimate('rename_attempts', NULL), (SELECT min(a.created) FROM mantle.rename_attempts a),
       current_setting('mantle.tombstone_retention_s')::int * interval '1 second'
UNION ALL
SELECT 'prune queue', mantle.rows_estimate('prune_queue', NULL), (SELECT min(q.queued) FROM mantle.prune_queue q),
       current_setting('mantle.prune_grace_ms')::int * interval '1 millisecond';
GRANT SELECT ON mantle.backlogs TO mantle_monitor;
COMMENT ON VIEW mantle.backlogs IS 'What the worker purges or looks at: how much there is, how old, and how long it may be kept';
COMMENT ON COLUMN mantle.backlogs.rows_estimate IS 'As of the last vacuum or analyze; -1 before the first';
COMMENT ON COLUMN mantle.backlogs.kept IS 'Older than this, it should be gone: if it is not, the worker is behind or does not run';

GRANT SELECT ON mantle.operations TO mantle_monitor;
