--- analyst: Components of a path; slashes at its ends are ignored
CREATE FUNCTION mantle.split_path(p_path text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN trim(BOTH '/' FROM p_path) = '' THEN '{}'::text[]
                ELSE string_to_array(trim(BOTH '/' FROM p_path), '/') END
$$;

--- analyst: A mode in octal digits: 493 becomes 755
CREATE FUNCTION mantle.octal(p_mode int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT lpad(((p_mode >> 6 & 7) * 100 + (p_mode >> 3 & 7) * 10 + (p_mode & 7))::text, 3, '0')
$$;

--- analyst: The deepest existing directory on a path and its depth; also its place, if that is the whole path
-- Level by level, with one primary-key lookup each: Citus could run neither a self-join nor a recursion. STABLE, so
-- all lookups see the calling statement's snapshot.
CREATE FUNCTION mantle.walk_path(
    p_ns text, p_components text[], OUT ns bigint, OUT depth int, OUT id bigint, OUT pid bigint, OUT name text)
LANGUAGE plpgsql STABLE {as_caller} AS $$
#variable_conflict use_column
DECLARE r record;
BEGIN
    pid := 0;
    name := p_ns || '/';
    LOOP
        -- A name with a slash is a directory's. An explicit condition would offer the planner the indexes of
        -- directories by pid alone.
        SELECT m.ns, m.id INTO r FROM mantle.meta m
         WHERE m.pid = walk_path.pid AND m.name = walk_path.name AND m.ts = 0;
        EXIT WHEN NOT FOUND;
        ns := r.ns;
        id := r.id;
        depth := coalesce(depth + 1, 0);
        EXIT WHEN depth = cardinality(p_components);
        pid := id;
        name := p_components[depth + 1] || '/';
    END LOOP;
END $$;

--- analyst: The directory at a path, where a function starts, and its key (empty: the root); NULLs if there is none
CREATE FUNCTION mantle.directory_at(p_ns text, p_path text, OUT ns bigint, OUT id bigint, OUT key text)
LANGUAGE plpgsql STABLE {as_caller} AS $$
DECLARE
    v_path text[] := mantle.split_path(p_path);
    w record;
BEGIN
    SELECT * INTO w FROM mantle.walk_path(p_ns, v_path);
    IF w.depth = cardinality(v_path) THEN
        ns := w.ns;
        id := w.id;
        key := array_to_string(v_path || ''::text, '/');
    END IF;
END $$;

--- analyst: The directory or object at a path, or no row
CREATE FUNCTION mantle.resolve(ns text, path text)
RETURNS TABLE (kind text, pid bigint, name text, id bigint, owner int, grp int, mode int, version bigint, size bigint)
LANGUAGE plpgsql STABLE {as_caller} AS $$
#variable_conflict use_column
DECLARE
    v_path text[] := mantle.split_path(path);
    v_names text[] := '{}';  -- possible names of the last component in directory w.id
    w record;
BEGIN
    SELECT * INTO w FROM mantle.walk_path(ns, v_path);
    IF w.depth = cardinality(v_path) THEN
        v_names := ARRAY[w.name];
        w.id := w.pid;
    END IF;
    IF w.depth >= cardinality(v_path) - 1 AND v_path <> '{}' AND right(path, 1) <> '/' THEN
        v_names := v_names || v_path[cardinality(v_path)];
    END IF;
    RETURN QUERY
    SELECT CASE WHEN m.explicit IS NULL THEN 'object' ELSE 'directory' END, m.pid, m.name, m.id, m.owner, m.grp, m.mode,
           m.version, m.size
      FROM mantle.meta m WHERE m.pid = w.id AND m.name = ANY (v_names) AND m.ts = 0 AND m.id IS NOT NULL;
END $$;
