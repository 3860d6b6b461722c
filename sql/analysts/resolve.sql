CREATE FUNCTION mantle.split_path(p_path text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN trim(BOTH '/' FROM p_path) = '' THEN '{}'::text[]
                ELSE string_to_array(trim(BOTH '/' FROM p_path), '/') END
$$;
COMMENT ON FUNCTION mantle.split_path(text) IS 'Components of a path; slashes at its ends do not matter';
REVOKE ALL ON FUNCTION mantle.split_path(text) FROM PUBLIC;

CREATE FUNCTION mantle.resolve(ns text, path text)
RETURNS TABLE (kind text, pid bigint, name text, id bigint, owner int, grp int, mode int, version bigint, size bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_path text[] := mantle.split_path(path);
    r record;
BEGIN
    SELECT * INTO r FROM mantle.resolve_path(ns, v_path);
    RETURN QUERY
    SELECT CASE WHEN m.explicit IS NULL THEN 'object' ELSE 'directory' END, m.pid, m.name, m.id, m.owner, m.grp, m.mode,
           m.version, m.size
      FROM mantle.meta m
     WHERE m.ts = 0 AND m.id IS NOT NULL
       AND (r.depth = cardinality(v_path) AND m.explicit IS NOT NULL AND m.pid = r.parent_id AND m.id = r.id
            OR r.depth = cardinality(v_path) - 1 AND right(path, 1) <> '/' AND m.pid = r.id
               AND m.name = v_path[cardinality(v_path)]);
END $$;
COMMENT ON FUNCTION mantle.resolve(text, text) IS
    'What is at a path: a directory or an object; no row when nothing is';
REVOKE ALL ON FUNCTION mantle.resolve(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.resolve(text, text) TO mantle_analyst, mantle_gateway;
