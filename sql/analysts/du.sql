-- Level by level, each a set query; all in the calling statement's snapshot. Attribute and delta records are exact, so the
-- entries of a directory are read only when it has subdirectories, to find these.

-- What a level holds itself, summed by the result row that each directory counts for; and those with subdirectories.
CREATE FUNCTION mantle.du_level(
    p_ids bigint[], p_rows int[], p_paths text[], OUT rows int[], OUT objects bigint[], OUT directories bigint[],
    OUT bytes bigint[], OUT inner_ids bigint[], OUT inner_rows int[], OUT inner_paths text[])
LANGUAGE sql STABLE AS $$
    WITH own AS MATERIALIZED (
        SELECT u.id, u.n, u.path, sum(m.entries) AS entries, sum(m.subdirectories) AS subdirectories, sum(m.bytes) AS bytes
          FROM unnest(p_ids, p_rows, p_paths) AS u(id, n, path)
          JOIN mantle.meta m ON m.pid = u.id AND m.name = '/_ATTR'
         GROUP BY u.id, u.n, u.path),
    summed AS (
        SELECT o.n, sum(o.entries - o.subdirectories)::bigint AS objects, sum(o.subdirectories)::bigint AS directories,
               sum(o.bytes)::bigint AS bytes FROM own AS o GROUP BY o.n)
    SELECT s.*, i.* FROM
        (SELECT array_agg(n), array_agg(objects), array_agg(directories), array_agg(bytes) FROM summed) AS s,
        (SELECT array_agg(id), array_agg(n), array_agg(path) FROM own WHERE subdirectories > 0) AS i
$$;
COMMENT ON FUNCTION mantle.du_level(bigint[], int[], text[]) IS 'du: one level''s own counts';
REVOKE ALL ON FUNCTION mantle.du_level(bigint[], int[], text[]) FROM PUBLIC;

-- One row for the directory (level 0, empty name) and for each below it down to `depth` levels, parents first; each with
-- all that is below it, however deep. Directories below that level count for the row above them.
CREATE FUNCTION mantle.du(ns text, path text, depth int)
RETURNS TABLE (
    directory text, level int, objects bigint, directories bigint, bytes bigint, owner int, grp int, mode int)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_path text[] := mantle.split_path(path);
    v_start record;
    r_path text[] := '{""}';
    r_level int[] := '{0}';
    r_above int[] := '{0}';
    r_objects bigint[] := '{0}';
    r_directories bigint[] := '{0}';
    r_bytes bigint[] := '{0}';
    r_owner int[]; r_grp int[]; r_mode int[];
    -- The level: directories, the row that each counts for, and their paths where they are rows themselves.
    v_ids bigint[];
    v_rows int[] := '{1}';
    v_paths text[] := '{""}';
    v_level int := 0;
    v_known int;
    l record;
    c record;
BEGIN
    SELECT * INTO v_start FROM mantle.resolve_path(ns, v_path);
    IF v_start.depth IS DISTINCT FROM cardinality(v_path) OR (depth >= 0) IS NOT TRUE THEN
        RETURN;
    END IF;
    v_ids := ARRAY[v_start.id]; r_owner := ARRAY[v_start.owner]; r_grp := ARRAY[v_start.grp]; r_mode := ARRAY[v_start.mode];
    LOOP
        SELECT * INTO l FROM mantle.du_level(v_ids, v_rows, v_paths);
        FOR i IN 1..coalesce(cardinality(l.rows), 0) LOOP
            r_objects[l.rows[i]] := r_objects[l.rows[i]] + l.objects[i];
            r_directories[l.rows[i]] := r_directories[l.rows[i]] + l.directories[i];
            r_bytes[l.rows[i]] := r_bytes[l.rows[i]] + l.bytes[i];
        END LOOP;
        EXIT WHEN l.inner_ids IS NULL;
        SELECT array_agg(m.id) AS ids, array_agg(u.n) AS above, array_agg(u.path || m.name) AS paths,
               array_agg(m.owner) AS owners, array_agg(m.grp) AS grps, array_agg(m.mode) AS modes
          INTO c FROM unnest(l.inner_ids, l.inner_rows, l.inner_paths) AS u(id, n, path)
          JOIN mantle.meta m ON m.pid = u.id AND m.explicit IS NOT NULL;
        EXIT WHEN c.ids IS NULL;
        v_ids := c.ids; v_rows := c.above; v_paths := NULL;
        v_level := v_level + 1;
        IF v_level <= depth THEN
            v_known := cardinality(r_path);
            v_rows := ARRAY(SELECT generate_series(v_known + 1, v_known + cardinality(v_ids)));
            v_paths := c.paths;
            r_path := r_path || c.paths; r_above := r_above || c.above;
            r_level := r_level || array_fill(v_level, ARRAY[cardinality(v_ids)]);
            r_objects := r_objects || array_fill(0::bigint, ARRAY[cardinality(v_ids)]);
            r_directories := r_directories || array_fill(0::bigint, ARRAY[cardinality(v_ids)]);
            r_bytes := r_bytes || array_fill(0::bigint, ARRAY[cardinality(v_ids)]);
            r_owner := r_owner || c.owners; r_grp := r_grp || c.grps; r_mode := r_mode || c.modes;
        END IF;
    END LOOP;
    FOR i IN REVERSE cardinality(r_path)..2 LOOP
        r_objects[r_above[i]] := r_objects[r_above[i]] + r_objects[i];
        r_directories[r_above[i]] := r_directories[r_above[i]] + r_directories[i];
        r_bytes[r_above[i]] := r_bytes[r_above[i]] + r_bytes[i];
    END LOOP;
    RETURN QUERY SELECT * FROM unnest(r_path, r_level, r_objects, r_directories, r_bytes, r_owner, r_grp, r_mode);
END $$;
COMMENT ON FUNCTION mantle.du(text, text, int) IS
    'Objects, directories and bytes below a directory, and below each directory in it down to a depth; no row: no such directory';
REVOKE ALL ON FUNCTION mantle.du(text, text, int) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.du(text, text, int) TO mantle_analyst, mantle_gateway;

CREATE FUNCTION mantle.du(ns text, path text, OUT objects bigint, OUT directories bigint, OUT bytes bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT d.objects, d.directories, d.bytes INTO objects, directories, bytes FROM mantle.du(ns, path, 0) AS d;
END $$;
COMMENT ON FUNCTION mantle.du(text, text) IS
    'Objects, directories and bytes below a directory; NULLs when there is no such directory';
REVOKE ALL ON FUNCTION mantle.du(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.du(text, text) TO mantle_analyst, mantle_gateway;
