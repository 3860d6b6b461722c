--- gateway: Entries of a directory in name order (bytes), after p_start_after, beginning with p_prefix
-- Reads two ranges of the primary key, around the attribute and delta records (`/_ATTR` lies between `/` and `0`). The
-- settings keep the planner to them: a bitmap scan or a sort would read the whole directory for each page.
CREATE FUNCTION mantle.list(p_ns bigint, p_pid bigint, p_start_after text, p_prefix text, p_limit int)
RETURNS TABLE (name text, {entry.declared})
LANGUAGE plpgsql STABLE {as_owner} SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    v_rows bigint;
    v_from text := greatest(coalesce(p_prefix, '') COLLATE "C", coalesce(p_start_after, '') COLLATE "C");
    -- Above every name if there is no prefix or nothing is above it: 64 characters of 4 bytes are longer than
    -- NAME_BYTES_MAX.
    v_below text := coalesce(mantle.prefix_end(coalesce(p_prefix, '')), repeat(chr(1114111), 64));
BEGIN
    RETURN QUERY
    SELECT m.name, {entry.columns_of_m} FROM mantle.meta m
     WHERE m.pid = p_pid AND m.name >= v_from AND m.name < v_below AND m.name < '/' AND m.ts = 0
       AND m.name IS DISTINCT FROM p_start_after AND (p_pid = 0 OR m.ns = p_ns)
     ORDER BY m.name LIMIT p_limit;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF v_rows < p_limit THEN
        RETURN QUERY
        SELECT m.name, {entry.columns_of_m} FROM mantle.meta m
         WHERE m.pid = p_pid AND m.name >= v_from AND m.name < v_below AND m.name >= '0' AND m.ts = 0
           AND m.name IS DISTINCT FROM p_start_after AND (p_pid = 0 OR m.ns = p_ns)
         ORDER BY m.name LIMIT p_limit - v_rows;
    END IF;
END $$;

--- gateway: Lists several directories, each from its own start and up to p_limit, in one snapshot
CREATE FUNCTION mantle.list(p_ns bigint, p_pid bigint[], p_start_after text[], p_prefix text[], p_limit int)
RETURNS TABLE (ord int, name text, {entry.declared}) LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    FOR i IN 1..coalesce(cardinality(p_pid), 0) LOOP
        RETURN QUERY SELECT i, l.* FROM mantle.list(p_ns, p_pid[i], p_start_after[i], p_prefix[i], p_limit) AS l;
    END LOOP;
END $$;
