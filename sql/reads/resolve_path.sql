-- One statement, so one snapshot: the walk cannot mix a directory's old place with its new one. The settings keep the
-- planner to one primary-key lookup a level.
CREATE FUNCTION mantle.resolve_path(p_ns_name text, p_components text[])
RETURNS TABLE (
    ns bigint, depth int, id bigint, parent_id bigint, owner int, grp int, mode int, version bigint, chain_owner int[],
    chain_grp int[], chain_mode int[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE walk AS (
        SELECT m.ns, 0 AS depth, m.id, m.pid, m.owner, m.grp, m.mode, m.version,
               ARRAY[m.owner] AS owners, ARRAY[m.grp] AS grps, ARRAY[m.mode] AS modes
          FROM mantle.meta m WHERE m.pid = 0 AND m.name = p_ns_name || '/' AND m.ts = 0
        UNION ALL
        SELECT w.ns, w.depth + 1, m.id, w.id, m.owner, m.grp, m.mode, m.version,
               w.owners || m.owner, w.grps || m.grp, w.modes || m.mode
          FROM walk w JOIN mantle.meta m ON m.pid = w.id AND m.name = p_components[w.depth + 1] || '/' AND m.ts = 0
         WHERE m.explicit IS NOT NULL)
    SELECT w.ns, w.depth, w.id, w.pid, w.owner, w.grp, w.mode, w.version, w.owners, w.grps, w.modes
      FROM walk w ORDER BY w.depth DESC LIMIT 1;
END $$;
COMMENT ON FUNCTION mantle.resolve_path(text, text[]) IS
    'The deepest existing directory on a path, and the permissions of all on the way, root first; no row: no such namespace';
REVOKE ALL ON FUNCTION mantle.resolve_path(text, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.resolve_path(text, text[]) TO mantle_gateway;
