--- gateway: One page of the keys below a directory, in S3's order: objects, and explicit directories as dir/; without those
--- below another directory that p_caller may not read and search
-- The walk finds the page's keys (extension/src/tree/walk.rs). It checks the permission of each directory in the row by
-- which it found the directory, so that no change can come between the check and the read. This adds the keys' rows
-- under the same snapshot. The settings also apply to the walk's statements.
CREATE FUNCTION mantle.list_tree(p_ns bigint, p_pid bigint, p_prefix text, p_start_after text, p_limit int,
    p_caller text)
RETURNS TABLE (key text, {entry.declared})
LANGUAGE plpgsql STABLE {as_owner} SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    v_keys text[];
    v_pids bigint[];
    v_names text[];
BEGIN
    IF mantle.is_distributed() THEN
        -- Reads all rows of the page in one query over the shards that have them.
        SELECT array_agg(w.key ORDER BY w.n), array_agg(w.pid ORDER BY w.n), array_agg(w.name ORDER BY w.n)
          INTO v_keys, v_pids, v_names
          FROM mantle.walk_tree(p_pid, coalesce(p_prefix, ''), p_start_after, p_limit, p_caller)
               WITH ORDINALITY AS w(key, pid, name, n);
        RETURN QUERY EXECUTE $q$
        WITH found AS MATERIALIZED (
            SELECT * FROM mantle.meta m WHERE m.pid = ANY ($2) AND m.name = ANY ($3) AND m.ts = 0 AND m.ns = $4)
        SELECT w.key, {entry.columns_of_e} FROM unnest($1, $2, $3) WITH ORDINALITY AS w(key, pid, name, n)
          JOIN found AS e ON e.pid = w.pid AND e.name = w.name ORDER BY w.n
        $q$ USING v_keys, v_pids, v_names, p_ns;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT w.key, {entry.columns_of_e}
      FROM mantle.walk_tree(p_pid, coalesce(p_prefix, ''), p_start_after, p_limit, p_caller) AS w
      CROSS JOIN LATERAL (SELECT * FROM mantle.meta m
                           WHERE m.pid = w.pid AND m.name = w.name AND m.ts = 0 AND m.ns = p_ns OFFSET 0) AS e;
END $$;
