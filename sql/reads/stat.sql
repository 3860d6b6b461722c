CREATE FUNCTION mantle.stat(p_ns bigint, p_pid bigint[], p_name text[])
RETURNS TABLE (
    ord int, code text, name text, id bigint, owner int, grp int, mode int, version bigint, explicit boolean, size bigint,
    synthetic boolean, etag text, content_type text, user_metadata jsonb, locator text, created timestamptz,
    modified timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT u.n::int, CASE WHEN m.id IS NULL THEN 'MT010' END, u.name, m.id, m.owner, m.grp, m.mode, m.version, m.explicit,
           m.size, m.synthetic, m.etag, m.content_type, m.user_metadata, m.locator, m.created, m.modified
      FROM unnest(p_pid, p_name) WITH ORDINALITY AS u(pid, name, n)
      LEFT JOIN LATERAL (SELECT * FROM mantle.meta e
                          WHERE e.pid = u.pid AND e.name = u.name AND e.ts = 0 AND e.ns = p_ns AND e.id IS NOT NULL
                          OFFSET 0) AS m ON true;
END $$;
COMMENT ON FUNCTION mantle.stat(bigint, bigint[], text[]) IS
    'Entries by place: a name with a slash is a directory (the root: pid 0). MT010 where there is none';
REVOKE ALL ON FUNCTION mantle.stat(bigint, bigint[], text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.stat(bigint, bigint[], text[]) TO mantle_gateway;
