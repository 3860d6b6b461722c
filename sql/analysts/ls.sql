CREATE FUNCTION mantle.ls(ns text, path text)
RETURNS TABLE (name text, id bigint, owner int, grp int, mode text, size bigint, modified timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_path text[] := mantle.split_path(path);
    r record;
BEGIN
    SELECT * INTO r FROM mantle.resolve_path(ns, v_path);
    RETURN QUERY
    SELECT m.name, m.id, m.owner, m.grp, lpad(to_oct.digits, 3, '0'), m.size, coalesce(m.modified, m.created)
      FROM mantle.meta m
     CROSS JOIN LATERAL (SELECT (m.mode >> 6 & 7)::text || (m.mode >> 3 & 7) || (m.mode & 7) AS digits) AS to_oct
     WHERE m.pid = r.id AND (m.name < '/' OR m.name >= '0') AND m.ts = 0 AND r.depth = cardinality(v_path)
     ORDER BY m.name;
END $$;
COMMENT ON FUNCTION mantle.ls(text, text) IS 'Entries of a directory in name order (bytes); directories end in a slash';
REVOKE ALL ON FUNCTION mantle.ls(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.ls(text, text) TO mantle_analyst, mantle_gateway;
