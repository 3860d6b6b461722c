-- Finds the directories below some others. While they are few, it goes level by level: each level is a set query on
-- the PostgreSQL index of directories alone. When they are many, it reads all directories of the namespace at once and
-- walks them in memory (extension/src/tree/in_memory.rs). That is less work than many large levels, and Citus would
-- send each level's arrays to every shard.
-- For the same reason, a set that is joined with many directories is read whole, behind OFFSET 0: PostgreSQL then
-- hashes the directories, and Citus joins both on the coordinator.

--- analyst: Whether these are too many directories to look up one by one
CREATE FUNCTION mantle.are_many(p_ids bigint[]) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$ SELECT cardinality(p_ids) > 5000 $$;

--- analyst: Directories and all below them, each with the row of the one it is below, NULL for none; the given
--- directories must not contain each other
-- A row is the caller's number for a start directory. NULL rows belong to directories that are below none.
CREATE FUNCTION mantle.rows_below(p_ns bigint, p_ids bigint[], p_rows int[], OUT ids bigint[], OUT rows int[])
LANGUAGE plpgsql STABLE {as_caller} SET work_mem = '64MB' AS $$
DECLARE
    v_ids bigint[] := p_ids;
    v_rows int[] := p_rows;
    v_pids bigint[];
BEGIN
    ids := p_ids; rows := p_rows;
    WHILE NOT mantle.are_many(ids) LOOP
        -- any order, the same for both
        EXECUTE 'SELECT array_agg(m.id), array_agg(u.n) FROM unnest($1, $2) AS u(id, n)
                   JOIN mantle.meta m ON m.pid = u.id AND m.explicit IS NOT NULL'
            INTO v_ids, v_rows USING v_ids, v_rows;
        IF v_ids IS NULL THEN
            RETURN;
        END IF;
        ids := ids || v_ids; rows := rows || v_rows;
    END LOOP;
    -- any order, the same for both
    SELECT coalesce(array_agg(m.id), '{}'), coalesce(array_agg(m.pid), '{}') INTO v_ids, v_pids
      FROM mantle.meta m WHERE m.ns = p_ns AND m.explicit IS NOT NULL;
    ids := p_ids || v_ids; rows := p_rows || mantle.tree_rows(p_ids, p_rows, v_ids, v_pids);
END $$;

--- analyst: A directory and all below it, with their keys; NULL for directories that are not below it
CREATE FUNCTION mantle.keys_below(p_ns bigint, p_id bigint, p_key text, OUT ids bigint[], OUT keys text[])
LANGUAGE plpgsql STABLE {as_caller} SET work_mem = '64MB' AS $$
DECLARE
    v_ids bigint[] := ARRAY[p_id];
    v_keys text[] := ARRAY[p_key];
    v_pids bigint[];
    v_names text[];
BEGIN
    ids := v_ids; keys := v_keys;
    WHILE NOT mantle.are_many(ids) LOOP
        -- any order, the same for both
        EXECUTE 'SELECT array_agg(m.id), array_agg(u.key || m.name) FROM unnest($1, $2) AS u(id, key)
                   JOIN mantle.meta m ON m.pid = u.id AND m.explicit IS NOT NULL'
            INTO v_ids, v_keys USING v_ids, v_keys;
        IF v_ids IS NULL THEN
            RETURN;
        END IF;
        ids := ids || v_ids; keys := keys || v_keys;
    END LOOP;
    -- any order, the same for all
    SELECT coalesce(array_agg(m.id), '{}'), coalesce(array_agg(m.pid), '{}'), coalesce(array_agg(m.name), '{}')
      INTO v_ids, v_pids, v_names FROM mantle.meta m WHERE m.ns = p_ns AND m.explicit IS NOT NULL;
    ids := p_id || v_ids; keys := p_key || mantle.tree_keys(p_id, p_key, v_ids, v_pids, v_names);
END $$;

--- analyst: The own content of directories, summed by row; directories without a row are left out
-- From attribute and delta records, which are exact; each kind has a PostgreSQL index. Objects are not read.
CREATE FUNCTION mantle.sums_by_row(p_namespaces bigint[], p_ids bigint[], p_rows int[])
RETURNS TABLE (n int, objects bigint, directories bigint, bytes bigint)
LANGUAGE plpgsql STABLE {as_caller} SET work_mem = '64MB' AS $$
DECLARE
    v_of_kind text := 'SELECT c.pid, u.n, c.entries, c.subdirectories, c.bytes FROM unnest($2, $3) AS u(id, n)
        JOIN (SELECT m.pid, m.entries, m.subdirectories, m.bytes FROM mantle.meta m
               WHERE m.ns = ANY ($1) AND m.name = ''/_ATTR'' AND m.ts %s) AS c ON c.pid = u.id WHERE u.n IS NOT NULL';
    v_fence text := CASE WHEN mantle.are_many(p_ids) THEN ' OFFSET 0' ELSE '' END;
BEGIN
    RETURN QUERY EXECUTE format(
        'SELECT c.n, sum(c.entries - c.subdirectories)::bigint, sum(c.subdirectories)::bigint, sum(c.bytes)::bigint
           FROM (' || v_of_kind || ' UNION ALL ' || v_of_kind || ') AS c GROUP BY c.n',
        '= 0' || v_fence, '> 0' || v_fence)
        USING p_namespaces, p_ids, p_rows;
END $$;
