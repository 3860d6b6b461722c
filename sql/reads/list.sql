-- Pages of directories. The fast paths scan the primary key (extension/src/reads/page.rs); the functions that end in
-- `_fallback` are left for what they cannot read.

--- A page of a directory that the fast path of mantle.list leaves
-- Reads two ranges of the primary key, around the attribute and delta records (`/_ATTR` lies between `/` and `0`). The
-- settings keep the planner to them: a bitmap scan or a sort would read the whole directory for each page.
CREATE FUNCTION mantle.list_fallback(p_ns bigint, p_pid bigint, p_start_after text, p_prefix text, p_limit int)
RETURNS TABLE (name text, {entry.declared})
LANGUAGE plpgsql STABLE {as_caller} SET plan_cache_mode = force_generic_plan
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

--- gateway: Entries of a directory in name order (bytes), after p_start_after, beginning with p_prefix
CREATE FUNCTION mantle.list(p_ns bigint, p_pid bigint, p_start_after text, p_prefix text, p_limit int)
RETURNS TABLE (name text, {entry.declared})
LANGUAGE c STABLE {as_owner} AS 'MODULE_PATHNAME', 'mantle_list';

--- gateway: Lists several directories, each from its own start and up to p_limit, in one snapshot
CREATE FUNCTION mantle.list(p_ns bigint, p_pid bigint[], p_start_after text[], p_prefix text[], p_limit int)
RETURNS TABLE (ord int, name text, {entry.declared}) LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    FOR i IN 1..coalesce(cardinality(p_pid), 0) LOOP
        RETURN QUERY SELECT i, l.* FROM mantle.list(p_ns, p_pid[i], p_start_after[i], p_prefix[i], p_limit) AS l;
    END LOOP;
END $$;

--- Whether a directory may be empty that is not pruned yet: no directory waits for the worker otherwise
-- Reads the youngest row first, because the oldest ones may be dead and not vacuumed yet.
CREATE FUNCTION mantle.are_directories_queued() RETURNS boolean
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    PERFORM q.pid FROM mantle.prune_queue q ORDER BY q.queued DESC LIMIT 1;
    RETURN FOUND;
END $$;

--- A page of a directory that the fast path of mantle.list_filled leaves: one with an implicit directory, while
--- directories wait for the worker (P54)
-- Such a directory is pruned some time after its last key went. Only while directories wait for that is each implicit
-- child looked into. The settings also apply to the statements of mantle.holds_key.
CREATE FUNCTION mantle.list_filled_fallback(p_ns bigint, p_pid bigint, p_start_after text, p_prefix text, p_limit int)
RETURNS TABLE (name text, {entry.declared})
LANGUAGE plpgsql STABLE {as_caller} SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    e record;
    v_after text := p_start_after;
    v_room int := p_limit;
    v_wanted int;
    v_read int;
BEGIN
    IF NOT mantle.are_directories_queued() THEN
        RETURN QUERY SELECT * FROM mantle.list(p_ns, p_pid, p_start_after, p_prefix, p_limit);
        RETURN;
    END IF;
    WHILE v_room > 0 LOOP
        v_read := 0; v_wanted := v_room;
        FOR e IN SELECT * FROM mantle.list(p_ns, p_pid, v_after, p_prefix, v_wanted) LOOP
            v_read := v_read + 1;
            v_after := e.name;
            CONTINUE WHEN e.explicit IS FALSE AND NOT mantle.holds_key(e.id);
            name := e.name;
            SELECT {entry.columns_of_e} INTO {entry.columns};
            v_room := v_room - 1;
            RETURN NEXT;
        END LOOP;
        EXIT WHEN v_read < v_wanted;
    END LOOP;
END $$;

--- gateway: As mantle.list of one directory, without the implicit directories that hold no key, which S3 does not show (P54)
CREATE FUNCTION mantle.list_filled(p_ns bigint, p_pid bigint, p_start_after text, p_prefix text, p_limit int)
RETURNS TABLE (name text, {entry.declared})
LANGUAGE c STABLE {as_owner} AS 'MODULE_PATHNAME', 'mantle_list_filled';

--- gateway: Pages of directories that are on this node, all in one snapshot. For each element the result of mantle.list
--- (if p_filled: of mantle.list_filled), as rows of the binary COPY format; {wrong_node} if it is on another node, or
--- its shard is locked; neither if it would delay the others and should be read alone
CREATE FUNCTION mantle.list_local(p_ns bigint[], p_pid bigint[], p_start_after text[], p_prefix text[], p_limit int[],
    p_filled boolean[])
RETURNS TABLE (ord int, code text, page bytea)
LANGUAGE c STABLE {as_owner} AS 'MODULE_PATHNAME', 'mantle_list_local';
