--- Folds delta records of a directory into its primary attribute record, up to a limit, and makes a missing one
-- It takes the shared latch: an exclusive one would queue every create behind it, and a try-lock would starve (P11).
-- Under it no tombstone can appear, and a directory with a tombstone has no deltas. Two concurrent compactions take
-- different rows. In three statements, because Citus would send the intermediate results of one to every node.
CREATE FUNCTION mantle.compact_directory(p_pid bigint, p_limit int) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_chosen bigint[];
    v_sum mantle.meta;
BEGIN
    PERFORM mantle.raise_fault(mantle.latch_pids(ARRAY[p_pid], '{}'));
    SELECT array_agg(c.ts) INTO v_chosen  -- any order
      FROM (SELECT m.ts FROM mantle.meta m WHERE m.pid = p_pid AND m.name = '/_ATTR' AND m.ts > 0
             LIMIT p_limit FOR UPDATE SKIP LOCKED) AS c;
    IF v_chosen IS NULL THEN
        RETURN 0;
    END IF;
    WITH gone AS (
        DELETE FROM mantle.meta m WHERE m.pid = p_pid AND m.name = '/_ATTR' AND m.ts = ANY (v_chosen)
        RETURNING m.ns, m.entries, m.subdirectories, m.bytes, m.modified)
    SELECT g.ns, sum(g.entries), sum(g.subdirectories), sum(g.bytes), max(g.modified)
      INTO STRICT v_sum.ns, v_sum.entries, v_sum.subdirectories, v_sum.bytes, v_sum.modified FROM gone g GROUP BY g.ns;
    INSERT INTO mantle.meta AS m (pid, name, ts, ns, entries, subdirectories, bytes, modified, removed)
    VALUES (p_pid, '/_ATTR', 0, v_sum.ns, v_sum.entries, v_sum.subdirectories, v_sum.bytes, v_sum.modified, false)
    {or_add};
    RETURN cardinality(v_chosen);
END $$;

--- mantle.compact_directory for several directories in one statement; answers how many were folded of each
-- The caller has latched each. In order, like every caller that waits for several attribute records. Not on Citus,
-- where the rows are on many shards.
-- The plan must not depend on how many delta records the last ANALYZE saw: usually none. So the rows are found in an
-- index's order, without a sort of all, and deleted by their places, without a join. (A nested loop compared every
-- chosen row with every delta record: 8 s a step with 45,000.)
CREATE FUNCTION mantle.compact_directories(p_pids bigint[], p_limit int) RETURNS TABLE (pid bigint, folded bigint)
LANGUAGE sql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
    WITH chosen AS MATERIALIZED (
        SELECT m.ctid AS place FROM mantle.meta m WHERE m.pid = ANY (p_pids) AND m.name = '/_ATTR' AND m.ts > 0
         ORDER BY m.pid LIMIT p_limit FOR UPDATE SKIP LOCKED),
    gone AS (
        DELETE FROM mantle.meta m WHERE m.ctid = ANY (ARRAY(SELECT c.place FROM chosen c))
        RETURNING m.pid, m.ns, m.entries, m.subdirectories, m.bytes, m.modified),
    folded AS (
        INSERT INTO mantle.meta AS m (pid, name, ts, ns, entries, subdirectories, bytes, modified, removed)
        SELECT g.pid, '/_ATTR', 0, g.ns, sum(g.entries), sum(g.subdirectories), sum(g.bytes), max(g.modified), false
          FROM gone g GROUP BY g.pid, g.ns ORDER BY g.pid
        {or_add})
    SELECT g.pid, count(*) FROM gone g GROUP BY g.pid;
$$;

--- mantle.compact_directory on the node that has the directory and its latch
CREATE FUNCTION mantle.compact_delegated(p_pid bigint, p_limit int) RETURNS bigint
LANGUAGE plpgsql VOLATILE {delegated} SET lock_timeout = '1s' AS $$
DECLARE v_folded bigint := mantle.compact_directory(p_pid, p_limit);
BEGIN
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_pid]));
    RETURN v_folded;
END $$;

--- gateway: Folds one batch of a directory's delta records into its primary attribute record; answers how many
CREATE FUNCTION mantle.compact(p_pid bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE {as_owner} AS $$
DECLARE
    v_limit int := current_setting('mantle.compaction_batch')::int;
    v_folded bigint;
BEGIN
    PERFORM mantle.raise_fault(mantle.mutation_fault_code());
    SELECT f INTO v_folded FROM mantle.compact_delegated(p_pid, v_limit) AS f;
    RETURN v_folded;
END $$;

--- Delta records that wait for compaction, by directory
CREATE VIEW mantle.compaction_backlog WITH (security_invoker = true)
    AS SELECT m.pid, count(*) AS deltas, min(m.modified) AS oldest FROM mantle.meta m WHERE m.ts > 0 GROUP BY m.pid;
GRANT SELECT ON mantle.compaction_backlog TO mantle_analyst;
