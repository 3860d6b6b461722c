-- Deletes rows that were kept long enough, in batches, each its own transaction; and the oldest answers to request ids
-- if there are more than mantle.request_rows_max.

--- This node's shards of a table under Citus, else the table
CREATE FUNCTION mantle.local_shards(p_table text) RETURNS SETOF regclass LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT mantle.is_distributed() THEN
        RETURN NEXT format('mantle.%I', p_table)::regclass;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT shard_name(s.logicalrelid, s.shardid)::regclass
      FROM pg_dist_shard s JOIN pg_dist_placement p ON p.shardid = s.shardid
      JOIN pg_dist_local_group l ON l.groupid = p.groupid
     WHERE s.logicalrelid = format('mantle.%I', p_table)::regclass;
END $$;

--- A query of each of this node's shards of a table, as one subquery for a FROM clause; NULL where there is no shard
-- `%shard%` stands for the shard. It is a subquery for any number of shards: to a single query in parentheses the
-- caller could not add an ORDER BY or a LIMIT of its own.
CREATE FUNCTION mantle.over_local_shards(p_table text, p_query text) RETURNS text LANGUAGE sql VOLATILE AS $$
    -- any order
    SELECT '(SELECT u.* FROM (' || string_agg('(' || replace(p_query, '%shard%', s::text) || ')', ' UNION ALL ')
           || ') AS u)'
      FROM mantle.local_shards(p_table) AS s
$$;

--- Deletes rows that match a condition, up to a batch
-- The condition comes from our code, never from a client. On Citus it finds the rows in this node's shards and deletes
-- them through the distributed table, which knows when a shard has moved, one partition after the other.
CREATE FUNCTION mantle.purge(p_table text, p_column text, p_where text, p_batch int) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_all text;
    v_pids bigint[];
    v_pid bigint;
    v_rows bigint;
    v_purged bigint := 0;
BEGIN
    IF NOT mantle.is_distributed() THEN
        EXECUTE format('DELETE FROM mantle.%1$I t WHERE t.ctid = ANY (ARRAY(
                            SELECT o.ctid FROM mantle.%1$I o WHERE %2$s LIMIT %3$s FOR UPDATE SKIP LOCKED))',
                       p_table, p_where, p_batch);
        GET DIAGNOSTICS v_purged = ROW_COUNT;
        RETURN v_purged;
    END IF;
    v_all := mantle.over_local_shards(
        p_table, format('SELECT %I AS pid FROM %%shard%% WHERE %s LIMIT %s', p_column, p_where, p_batch));
    IF v_all IS NOT NULL THEN
        EXECUTE format('SELECT array_agg(DISTINCT u.pid) FROM (SELECT a.pid FROM %s AS a LIMIT %s) AS u',
                       v_all, p_batch) INTO v_pids;
    END IF;
    FOREACH v_pid IN ARRAY coalesce(v_pids, '{}') LOOP
        EXECUTE format('DELETE FROM mantle.%1$I t WHERE t.%2$I = %3$s AND t.ctid = ANY (ARRAY(
                            SELECT o.ctid FROM mantle.%1$I o WHERE o.%2$I = %3$s AND %4$s
                             LIMIT %5$s FOR UPDATE SKIP LOCKED))',
                       p_table, p_column, v_pid, p_where, p_batch - v_purged);
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        v_purged := v_purged + v_rows;
        EXIT WHEN v_purged >= p_batch;
    END LOOP;
    RETURN v_purged;
END $$;

--- When the last of this node's oldest answers, as many as given, was recorded
-- Answers of the last minute are never purged: so for a younger id no lookup of the purge is needed
-- (extension/src/steps/request_age.rs).
CREATE FUNCTION mantle.oldest_requests_end(p_count bigint) RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_all text := mantle.over_local_shards(
        'requests', format('SELECT created FROM %%shard%% WHERE created < %L ORDER BY created LIMIT %s',
                           now() - interval '1 minute', p_count));
    v_end timestamptz;
BEGIN
    IF v_all IS NOT NULL THEN
        EXECUTE format('SELECT max(o.created) FROM (SELECT a.created FROM %s AS a ORDER BY a.created LIMIT %s) AS o',
                       v_all, p_count) INTO v_end;
    END IF;
    RETURN v_end;
END $$;

--- Deletes the oldest of too many answers to request ids, up to a batch
-- It first records up to when it purges, so that a call that no longer finds its answer finds that record.
CREATE FUNCTION mantle.purge_oldest_requests(p_excess bigint, p_batch int) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE v_end timestamptz := mantle.oldest_requests_end(least(p_excess, p_batch));
BEGIN
    IF v_end IS NULL THEN
        RETURN 0;
    END IF;
    INSERT INTO mantle.purged_requests AS p (up_to) VALUES (v_end)
    ON CONFLICT (only_row) DO UPDATE SET up_to = greatest(p.up_to, excluded.up_to);
    -- Makes the deletion visible to the next call's estimate.
    PERFORM pg_stat_force_next_flush();
    RETURN mantle.purge('requests', 'pid', format('created <= %L', v_end), least(p_excess, p_batch)::int);
END $$;

--- The worker's step that purges answers to request ids: too old ones, and the oldest of too many
-- Their number comes from the statistics, which lack changes of the last seconds and, after a crash, everything before
-- the next vacuum or analyze.
CREATE FUNCTION mantle.maintain_requests(p_due timestamptz, p_batch int) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_max bigint := current_setting('mantle.request_rows_max')::bigint;
    v_purged bigint := mantle.purge('requests', 'pid', format('created < %L', p_due), p_batch);
    v_excess bigint;
BEGIN
    IF v_purged = 0 AND v_max > 0 THEN
        SELECT sum(pg_stat_get_live_tuples(s)) - v_max INTO v_excess FROM mantle.local_shards('requests') AS s;
        IF v_excess > 0 THEN
            v_purged := mantle.purge_oldest_requests(v_excess, p_batch);
        END IF;
    END IF;
    RETURN v_purged;
END $$;

--- The worker's step that purges freed rows that nobody takes; a scan of their segment finds that their blocks are free. And
--- rows of shared bytes that a row still names
-- The removal of a row that is there when this looks leaves a row of its own, which is younger than those that go here.
-- A Citus node without shards may have no admissions and no freed rows, because nobody asks it. Otherwise it could get
-- shards again after other gateways have leased the segments and used the blocks (P59, P60).
CREATE FUNCTION mantle.maintain_freed(p_batch int) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_due timestamptz := now() - {FREED_RETENTION_S} * interval '1 second';
    v_shared_due timestamptz := now() - interval '1 hour';
    v_shared text[] := ARRAY(
        SELECT DISTINCT o.locator
          FROM (SELECT f.locator FROM mantle.freed f WHERE f.shared_by <> '0' AND f.freed < v_shared_due LIMIT p_batch) AS o);
    v_unnamed text[];
    v_purged bigint := 0;
    v_rows bigint;
BEGIN
    IF v_shared <> '{}' THEN
        v_unnamed := mantle.locators_without_object(v_shared);
        DELETE FROM mantle.freed f
         WHERE f.locator = ANY (v_shared) AND f.shared_by <> '0' AND f.freed < v_shared_due
           AND f.locator <> ALL (v_unnamed);
        GET DIAGNOSTICS v_purged = ROW_COUNT;
    END IF;
    IF NOT EXISTS (SELECT FROM mantle.local_shards('meta')) THEN
        DELETE FROM mantle.admitted_segments;
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        v_purged := v_purged + v_rows;
        v_due := now();
    END IF;
    -- Each skips from one volume to the next.
    WITH RECURSIVE next (volume) AS (
        SELECT min(f.volume) FROM mantle.freed f WHERE f.shared_by = '0'
        UNION ALL
        SELECT (SELECT min(f.volume) FROM mantle.freed f WHERE f.shared_by = '0' AND f.volume > n.volume)
          FROM next n WHERE n.volume IS NOT NULL)
    DELETE FROM mantle.freed f WHERE f.shared_by = '0' AND f.locator IN (
        SELECT d.locator FROM next n CROSS JOIN LATERAL (
            SELECT o.locator FROM mantle.freed o WHERE o.shared_by = '0' AND o.volume = n.volume AND o.freed < v_due
             ORDER BY o.freed LIMIT p_batch) AS d
         LIMIT p_batch);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_purged := v_purged + v_rows;
    WITH RECURSIVE next (volume) AS (
        SELECT min(f.volume) FROM mantle.freed f WHERE f.shared_by <> '0'
        UNION ALL
        SELECT (SELECT min(f.volume) FROM mantle.freed f WHERE f.shared_by <> '0' AND f.volume > n.volume)
          FROM next n WHERE n.volume IS NOT NULL)
    DELETE FROM mantle.freed f WHERE f.shared_by <> '0' AND (f.locator, f.shared_by) IN (
        SELECT d.locator, d.shared_by FROM next n CROSS JOIN LATERAL (
            SELECT o.locator, o.shared_by FROM mantle.freed o
             WHERE o.shared_by <> '0' AND o.volume = n.volume AND o.freed < v_due
             ORDER BY o.freed LIMIT p_batch) AS d
         LIMIT p_batch);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_purged + v_rows;
END $$;
