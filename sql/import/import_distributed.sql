-- Bulk imports on Citus. An import spans directories, so the part of each directory is a function that runs on the
-- directory's node (see sql/steps/cross_directory.sql), and all parts commit together. A part latches its directory
-- exclusively, inserts, counts, emits the message of its rows there (P1), and checks that they are still there (P14).
-- It inserts one row per statement, because Citus executes an INSERT … SELECT of an array through intermediate
-- results.
-- Directories that a call makes are latched too, unlike on one PostgreSQL: nodes commit one after the other, so a
-- reader may find an entry before the directories imported below it.

--- Adds to one directory's primary attribute record, and makes a missing one
-- Only the holder of the exclusive latch may do so (P10).
CREATE FUNCTION mantle.import_count(
    p_pid bigint, p_ns bigint, p_entries bigint, p_subdirectories bigint, p_bytes bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO mantle.meta AS m (pid, name, ts, ns, entries, subdirectories, bytes, modified, removed)
    VALUES (p_pid, '/_ATTR', 0, p_ns, p_entries, p_subdirectories, p_bytes, now(), false)
    {or_add};
END $$;

--- Latches a directory exclusively; answers which of these names it has, or only (/_ATTR, NULL) if it was removed
CREATE FUNCTION mantle.import_lookup_delegated(p_at bigint, p_name text[]) RETURNS TABLE (name text, id bigint)
LANGUAGE plpgsql VOLATILE {delegated} SET lock_timeout = '10s' AS $$
#variable_conflict use_column
BEGIN
    PERFORM mantle.raise_fault(mantle.latch_pids('{}', ARRAY[p_at]));
    IF mantle.removed_fault(p_at) IS NOT NULL THEN
        RETURN QUERY VALUES ('/_ATTR', NULL::bigint);
        RETURN;
    END IF;
    RETURN QUERY SELECT m.name, m.id FROM mantle.meta m WHERE m.pid = p_at AND m.name = ANY (p_name) AND m.ts = 0;
END $$;

--- mantle.import_lookup on the nodes of its directories, which it latches
CREATE FUNCTION mantle.import_lookup_distributed(
    p_pid bigint[], p_name text[], p_planned text[], p_fresh bigint[], INOUT p_code text[], INOUT p_existing bigint[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    d record;
    f record;
    v_pids bigint[] := '{}';
    v_names text[] := '{}';
    v_ids bigint[] := '{}';
BEGIN
    FOR d
        IN SELECT u.pid, array_agg(u.name) || array_agg(left(u.name, -1)) AS names  -- any order
          FROM unnest(p_pid, p_name, p_planned) AS u(pid, name, planned)
         WHERE u.planned IS NULL AND u.pid = ANY (p_fresh) GROUP BY u.pid ORDER BY u.pid
    LOOP
        FOR f IN EXECUTE 'SELECT name, id FROM mantle.import_lookup_delegated($1, $2)' USING d.pid, d.names LOOP
            v_pids := v_pids || d.pid;
            v_names := v_names || f.name;
            v_ids := v_ids || f.id;
        END LOOP;
    END LOOP;
    SELECT array_agg(coalesce(u.code, CASE
                WHEN NOT u.looked_up THEN NULL
                WHEN r.pid IS NOT NULL THEN '{directory_removed}'
                WHEN e.pid IS NOT NULL THEN '{already_exists}'
                WHEN o.pid IS NOT NULL THEN '{is_object}' END) ORDER BY u.n),
           array_agg(coalesce(u.existing, CASE WHEN u.looked_up THEN e.id END) ORDER BY u.n)
      INTO p_code, p_existing
      FROM (SELECT *, x.planned IS NULL AND x.pid = ANY (p_fresh) AS looked_up
              FROM unnest(p_pid, p_name, p_planned, p_code, p_existing)
                   WITH ORDINALITY AS x(pid, name, planned, code, existing, n)) AS u
      LEFT JOIN unnest(v_pids, v_names) AS r(pid, name) ON r.pid = u.pid AND r.name = '/_ATTR'
      LEFT JOIN unnest(v_pids, v_names, v_ids) AS e(pid, name, id) ON e.pid = u.pid AND e.name = u.name
      LEFT JOIN unnest(v_pids, v_names) AS o(pid, name) ON o.pid = u.pid AND o.name = left(u.name, -1);
END $$;

--- Inserts the new directories of an import in one directory
CREATE FUNCTION mantle.import_directories_delegated(
    p_at bigint, p_ns bigint, p_owner int, p_grp int, p_mode int, p_name text[], p_id bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE {delegated} SET plan_cache_mode = force_generic_plan SET lock_timeout = '10s' AS $$
DECLARE
    n int := cardinality(p_name);
    v_name text;
    v_id bigint;
BEGIN
    PERFORM mantle.raise_fault(mantle.latch_pids('{}', ARRAY[p_at]));
    FOR i IN 1..n LOOP
        v_name := p_name[i];
        v_id := p_id[i];
        INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, explicit, created)
        VALUES (p_at, v_name, p_ns, v_id, p_owner, p_grp, p_mode, 1, false, now());
    END LOOP;
    PERFORM mantle.import_count(p_at, p_ns, n, n, 0);
    PERFORM mantle.raise_fault(mantle.emit_directories(
                NULL, 0, array_fill(false, ARRAY[n]), array_fill(p_ns, ARRAY[n]), array_fill(p_at, ARRAY[n]), p_name,
                p_id, array_fill(1::bigint, ARRAY[n]), array_fill(p_owner, ARRAY[n]), array_fill(p_grp, ARRAY[n]),
                array_fill(p_mode, ARRAY[n]), NULL, NULL));
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_at]));
END $$;

--- mantle.import_insert on the nodes of its directories
CREATE FUNCTION mantle.import_insert_distributed(
    p_ns bigint, p_pid bigint[], p_name text[], p_id bigint[], p_code text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_root mantle.meta;
    d record;
BEGIN
    SELECT * INTO v_root FROM mantle.meta m WHERE m.id = p_ns AND m.explicit IS NOT NULL AND m.pid = 0;
    FOR d
        IN SELECT u.pid, array_agg(u.name ORDER BY u.n) AS names, array_agg(u.id ORDER BY u.n) AS ids
          FROM unnest(p_pid, p_name, p_id, p_code) WITH ORDINALITY AS u(pid, name, id, code, n)
         WHERE u.code IS NULL GROUP BY u.pid ORDER BY u.pid
    LOOP
        EXECUTE 'SELECT FROM mantle.import_directories_delegated($1, $2, $3, $4, $5, $6, $7)'
            USING d.pid, p_ns, v_root.owner, v_root.grp, v_root.mode, d.names, d.ids;
    END LOOP;
END $$;

--- Imports the objects of one directory
CREATE FUNCTION mantle.import_objects_delegated(
    p_at bigint, p_ns bigint, p_owner int, p_grp int, p_mode int, p_name text[], p_size bigint[], p_id bigint[],
    p_synthetic boolean, p_modified timestamptz)
RETURNS TABLE (inserted bigint, existing bigint, refused_ord int[], refused_code text[])
LANGUAGE plpgsql VOLATILE {delegated} SET plan_cache_mode = force_generic_plan SET lock_timeout = '10s' AS $$
#variable_conflict use_variable
DECLARE
    s record;
    o record;
    v_removed bigint[];
    v_probed text[];
    v_there text[];
    v_id bigint;
    v_size bigint;
    v_bytes bigint := 0;
BEGIN
    PERFORM mantle.raise_fault(mantle.latch_pids('{}', ARRAY[p_at]));
    v_removed := CASE WHEN mantle.removed_fault(p_at) IS NULL THEN '{}' ELSE ARRAY[p_at] END;
    SELECT * INTO s FROM mantle.import_screen(
        array_fill(p_at, ARRAY[cardinality(p_name)]), p_name, p_size, v_removed, ARRAY[p_at]);
    v_probed := s.check_name || ARRAY(SELECT u.name || '/' FROM unnest(s.check_name) AS u(name));
    SELECT array_agg(m.name) INTO v_there  -- any order
      FROM mantle.meta m WHERE m.pid = p_at AND m.name = ANY (v_probed) AND m.ts = 0;
    refused_ord := s.refused_ord;
    refused_code := s.refused_code;
    existing := cardinality(s.repeated_ord);
    inserted := 0;
    FOR o
        IN SELECT u.n, u.name, t.name IS NOT NULL AS is_there, d.name IS NOT NULL AS is_directory
          FROM unnest(s.check_ord, s.check_name) AS u(n, name)
          LEFT JOIN unnest(v_there) AS t(name) ON t.name = u.name
          LEFT JOIN unnest(v_there) AS d(name) ON d.name = u.name || '/' ORDER BY u.name COLLATE "C"
    LOOP
        IF o.is_directory THEN
            refused_ord := refused_ord || o.n;
            refused_code := refused_code || '{is_directory}'::text;
        ELSIF o.is_there THEN
            existing := existing + 1;
        ELSE
            v_id := p_id[o.n];
            v_size := p_size[o.n];
            INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, size, synthetic, created, modified)
            VALUES (p_at, o.name, p_ns, v_id, p_owner, p_grp, p_mode, 1, v_size, p_synthetic, now(), p_modified);
            inserted := inserted + 1;
            v_bytes := v_bytes + v_size;
        END IF;
    END LOOP;
    IF inserted > 0 THEN
        PERFORM mantle.import_count(p_at, p_ns, inserted, 0, v_bytes);
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_at]));
    RETURN NEXT;
END $$;

--- Imports objects on the nodes of their directories
CREATE FUNCTION mantle.import_objects_distributed(
    p_ns bigint, p_owner int, p_grp int, p_mode int, p_pid bigint[], p_name text[], p_size bigint[], p_first_id bigint,
    p_synthetic boolean, p_modified timestamptz, OUT inserted bigint, OUT existing bigint, OUT refused_ord int[],
    OUT refused_code text[]) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    g record;
    r record;
BEGIN
    inserted := 0; existing := 0; refused_ord := '{}'; refused_code := '{}';
    FOR g
        IN SELECT u.pid, array_agg(u.name ORDER BY u.n) AS names, array_agg(u.size ORDER BY u.n) AS sizes,
               array_agg(p_first_id + u.n - 1 ORDER BY u.n) AS ids, array_agg(u.n::int ORDER BY u.n) AS ords
          FROM unnest(p_pid, p_name, p_size) WITH ORDINALITY AS u(pid, name, size, n) GROUP BY u.pid ORDER BY u.pid
    LOOP
        IF g.pid >= {ID_MIN} THEN
            EXECUTE 'SELECT inserted, existing, refused_ord, refused_code
                       FROM mantle.import_objects_delegated($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)'
               INTO r USING g.pid, p_ns, p_owner, p_grp, p_mode, g.names, g.sizes, g.ids, p_synthetic, p_modified;
        ELSE
            -- Not a directory: screening alone refuses all of it.
            SELECT 0 AS inserted, 0 AS existing, s.refused_ord, s.refused_code INTO r
              FROM mantle.import_screen(
                       array_fill(g.pid, ARRAY[cardinality(g.names)]), g.names, g.sizes, '{}', '{}') AS s;
        END IF;
        inserted := inserted + r.inserted;
        existing := existing + r.existing;
        refused_ord := refused_ord || ARRAY(
            SELECT (g.ords)[x.n] FROM unnest(r.refused_ord) WITH ORDINALITY AS x(n, at) ORDER BY x.at);
        refused_code := refused_code || r.refused_code;
    END LOOP;
    -- In the order of the elements, but elements that exist as directories last, as without Citus.
    SELECT coalesce(array_agg(x.n ORDER BY x.code = '{is_directory}', x.n), '{}'),
           coalesce(array_agg(x.code ORDER BY x.code = '{is_directory}', x.n), '{}')
      INTO refused_ord, refused_code FROM unnest(refused_ord, refused_code) AS x(n, code);
END $$;
