--- PostgreSQL's estimate of the rows of a table or an index on this node; -1 before the first vacuum or analyze
CREATE FUNCTION mantle.local_rows_estimate(p_table text, p_index text) RETURNS bigint
LANGUAGE plpgsql STABLE {as_caller} AS $$
BEGIN
    IF NOT mantle.is_distributed() THEN
        RETURN (SELECT c.reltuples::bigint FROM pg_class c
                 WHERE c.oid = format('mantle.%I', coalesce(p_index, p_table))::regclass);
    END IF;
    RETURN (SELECT coalesce(sum(c.reltuples::bigint) FILTER (WHERE c.reltuples >= 0), -1)::bigint
              FROM pg_dist_shard s JOIN pg_dist_placement p ON p.shardid = s.shardid
              JOIN pg_dist_local_group l ON l.groupid = p.groupid
              JOIN pg_class c ON c.relnamespace = 'mantle'::regnamespace
                             AND c.relname = coalesce(p_index, p_table) || '_' || s.shardid
             WHERE s.logicalrelid = format('mantle.%I', p_table)::regclass);
END $$;

--- mantle.local_rows_estimate summed over all nodes that have one; -1 if none has
CREATE FUNCTION mantle.rows_estimate(p_table text, p_index text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT mantle.is_distributed() THEN
        RETURN mantle.local_rows_estimate(p_table, p_index);
    END IF;
    RETURN (SELECT coalesce(sum(r.result::bigint) FILTER (WHERE r.success AND r.result <> '-1'), -1)
              FROM run_command_on_all_nodes(
                       format('SELECT mantle.local_rows_estimate(%L, %L)', p_table, p_index)) AS r);
END $$;

--- monitor: The rows of mantle.backlogs
-- A function that runs as the owner, because only the owner may ask other nodes, and on Citus a view's owner does not
-- count on the shards.
CREATE FUNCTION mantle.backlogs_now()
RETURNS TABLE (backlog text, rows_estimate bigint, oldest timestamptz, kept interval)
LANGUAGE plpgsql VOLATILE {as_owner} AS $$
DECLARE
    v_requests interval := current_setting('mantle.request_retention_s')::int * interval '1 second';
    v_tombstones interval := current_setting('mantle.tombstone_retention_s')::int * interval '1 second';
    v_pruning interval := current_setting('mantle.prune_grace_ms')::int * interval '1 millisecond';
BEGIN
    SELECT min(r.created) INTO oldest FROM mantle.requests r;
    RETURN QUERY VALUES ('request ids', mantle.rows_estimate('requests', NULL), oldest, v_requests);
    SELECT min(m.created) INTO oldest FROM mantle.meta m WHERE m.removed;
    RETURN QUERY VALUES ('tombstones', mantle.rows_estimate('meta', 'meta_tombstone'), oldest, v_tombstones);
    SELECT min(a.created) INTO oldest FROM mantle.rename_attempts a;
    RETURN QUERY VALUES ('rename attempts', mantle.rows_estimate('rename_attempts', NULL), oldest, v_tombstones);
    SELECT min(q.queued) INTO oldest FROM mantle.prune_queue q;
    RETURN QUERY VALUES ('prune queue', mantle.rows_estimate('prune_queue', NULL), oldest, v_pruning);
END $$;

--- The worker's backlogs: how many rows wait, how old they are, and how long they may be kept
CREATE VIEW mantle.backlogs AS SELECT b.backlog, b.rows_estimate, b.oldest, b.kept FROM mantle.backlogs_now() AS b;
GRANT SELECT ON mantle.backlogs TO mantle_monitor;
COMMENT ON COLUMN mantle.backlogs.rows_estimate IS 'As of the last vacuum or analyze; -1 before the first';
COMMENT ON COLUMN mantle.backlogs.kept IS
    'A row older than this should be gone; if it is not, the worker is behind or does not run';

GRANT SELECT ON mantle.operations TO mantle_monitor;
