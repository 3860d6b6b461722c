-- Reads the directories first (see sql/analysts/tree.sql), then in one query their attribute and delta records, which
-- are exact. Objects are not read. Everything is read in the calling statement's snapshot. Queries are planned for the
-- arrays at hand: for few directories the best plan looks up each, for many it reads a whole index and hashes.

--- analyst: du: the children of one level's directories, which are rows of the result too
CREATE FUNCTION mantle.du_rows(
    p_ids bigint[], p_rows int[], p_paths text[], OUT ids bigint[], OUT above int[], OUT paths text[], OUT owners int[],
    OUT grps int[], OUT modes int[]) LANGUAGE plpgsql STABLE {as_caller} AS $$
BEGIN
    -- any order, the same for all
    EXECUTE 'SELECT array_agg(m.id), array_agg(u.n), array_agg(u.path || m.name),
                    array_agg(m.owner), array_agg(m.grp), array_agg(m.mode)
               FROM unnest($1, $2, $3) AS u(id, n, path) JOIN mantle.meta m ON m.pid = u.id AND m.explicit IS NOT NULL'
       INTO ids, above, paths, owners, grps, modes USING p_ids, p_rows, p_paths;
END $$;

--- analyst: mantle.du by level, of a directory by its id, owner, group and mode
CREATE FUNCTION mantle.du_below(p_ns bigint, p_id bigint, p_owner int, p_grp int, p_mode int, p_depth int)
RETURNS TABLE (
    directory text, level int, objects bigint, directories bigint, bytes bigint, owner int, grp int, mode int)
LANGUAGE plpgsql STABLE {as_caller} AS $$
#variable_conflict use_column
DECLARE
    -- The result, and for each row the number of the row above it.
    r_id bigint[] := ARRAY[p_id];
    r_path text[] := '{""}';
    r_level int[] := '{0}';
    r_above int[] := '{0}';
    r_owner int[] := ARRAY[p_owner]; r_grp int[] := ARRAY[p_grp]; r_mode int[] := ARRAY[p_mode];
    r_objects bigint[]; r_directories bigint[]; r_bytes bigint[];
    v_first int := 1;  -- of the level that is read
    v_last int := 1;
    c record;
BEGIN
    IF (p_depth >= 0) IS NOT TRUE THEN
        RETURN;
    END IF;
    FOR v_level IN 1..p_depth LOOP
        SELECT * INTO c FROM mantle.du_rows(
            r_id[v_first:v_last], ARRAY(SELECT generate_series(v_first, v_last)), r_path[v_first:v_last]);
        v_first := v_last + 1;
        EXIT WHEN c.ids IS NULL;
        r_id := r_id || c.ids; r_path := r_path || c.paths; r_above := r_above || c.above;
        r_level := r_level || array_fill(v_level, ARRAY[cardinality(c.ids)]);
        r_owner := r_owner || c.owners; r_grp := r_grp || c.grps; r_mode := r_mode || c.modes;
        v_last := cardinality(r_id);
    END LOOP;
    -- Only rows of the last level may have directories below them that are not rows themselves.
    SELECT * INTO c FROM mantle.rows_below(
        p_ns, r_id[v_first:v_last], ARRAY(SELECT generate_series(v_first, v_last)));
    SELECT array_agg(coalesce(s.objects, 0) ORDER BY g.n), array_agg(coalesce(s.directories, 0) ORDER BY g.n),
           array_agg(coalesce(s.bytes, 0) ORDER BY g.n)
      INTO r_objects, r_directories, r_bytes
      FROM generate_series(1, v_last) AS g(n)
      LEFT JOIN mantle.sums_by_row(ARRAY[p_ns], r_id[:v_first - 1] || c.ids,
                                   ARRAY(SELECT generate_series(1, v_first - 1)) || c.rows) AS s ON s.n = g.n;
    FOR i IN REVERSE v_last..2 LOOP
        r_objects[r_above[i]] := r_objects[r_above[i]] + r_objects[i];
        r_directories[r_above[i]] := r_directories[r_above[i]] + r_directories[i];
        r_bytes[r_above[i]] := r_bytes[r_above[i]] + r_bytes[i];
    END LOOP;
    RETURN QUERY SELECT * FROM unnest(r_path, r_level, r_objects, r_directories, r_bytes, r_owner, r_grp, r_mode);
END $$;

--- analyst: Objects, directories and bytes below a directory, and below each in it down to a depth; no row: no such
--- directory
-- One row for the directory (level 0, empty name) and one for each directory below it down to `depth` levels, parents
-- first. Each row sums up everything below its directory. Deeper directories count for the row above them.
CREATE FUNCTION mantle.du(ns text, path text, depth int)
RETURNS TABLE (
    directory text, level int, objects bigint, directories bigint, bytes bigint, owner int, grp int, mode int)
LANGUAGE plpgsql STABLE {as_caller} AS $$
#variable_conflict use_column
DECLARE v_start record;
BEGIN
    SELECT d.ns, m.id, m.owner, m.grp, m.mode INTO v_start
      FROM mantle.directory_at(ns, path) AS d
     CROSS JOIN LATERAL mantle.resolve(du.ns, trim(BOTH '/' FROM path) || '/') AS m;
    IF FOUND THEN
        RETURN QUERY SELECT * FROM mantle.du_below(
            v_start.ns, v_start.id, v_start.owner, v_start.grp, v_start.mode, depth);
    END IF;
END $$;

--- analyst: Objects, directories and bytes below a directory; NULLs if it does not exist
CREATE FUNCTION mantle.du(ns text, path text, OUT objects bigint, OUT directories bigint, OUT bytes bigint)
LANGUAGE plpgsql STABLE {as_caller} AS $$
BEGIN
    SELECT d.objects, d.directories, d.bytes INTO objects, directories, bytes FROM mantle.du(ns, path, 0) AS d;
END $$;
