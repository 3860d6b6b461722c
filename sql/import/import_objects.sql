-- Bulk import of objects, set-based. Exclusive latches of the pids replace the latches of names, because no other call
-- creates there meanwhile. So existing rows are looked up first, only in directories with an attribute record (the
-- others are empty), and new rows are inserted plainly, at half the cost of ON CONFLICT. Counts go directly into
-- primary attribute records (see import_directories). An object that exists is counted and not changed, so a call can
-- be repeated.

--- Which objects of an import are not inserted: refused with a code, or skipped because they exist or occur twice
CREATE FUNCTION mantle.import_refusals(
    p_pid bigint[], p_name text[], p_size bigint[],
    OUT refused_ord int[], OUT refused_code text[], OUT passed_ord int[])
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_removed bigint[];
    v_occupied bigint[];
    s record;
    v_codes text[];
    v_ords int[];
BEGIN
    -- any order
    SELECT coalesce(array_agg(a.pid) FILTER (WHERE a.removed), '{}'), coalesce(array_agg(a.pid), '{}')
      INTO v_removed, v_occupied
      FROM (SELECT m.pid, bool_or(m.removed) AS removed FROM mantle.meta m
             WHERE m.pid = ANY (ARRAY(SELECT DISTINCT u.pid FROM unnest(p_pid) AS u(pid))) AND m.name = '/_ATTR'
             GROUP BY m.pid) AS a;
    SELECT * INTO s FROM mantle.import_screen(p_pid, p_name, p_size, v_removed, v_occupied);
    SELECT array_agg(f.n ORDER BY f.n), array_agg(f.code ORDER BY f.n) INTO v_ords, v_codes
      FROM (SELECT u.n, CASE
                       WHEN EXISTS (SELECT FROM mantle.meta m WHERE m.pid = u.pid AND m.name = u.name || '/'
                                       AND m.ts = 0 OFFSET 0) THEN '{is_directory}'
                       WHEN EXISTS (SELECT FROM mantle.meta m WHERE m.pid = u.pid AND m.name = u.name
                                       AND m.ts = 0 OFFSET 0) THEN '{already_exists}' END AS code
              FROM unnest(s.check_ord, s.check_pid, s.check_name) AS u(n, pid, name)) AS f
     WHERE f.code IS NOT NULL;
    refused_ord := s.refused_ord || ARRAY(
        SELECT f.n FROM unnest(v_ords, v_codes) AS f(n, code) WHERE f.code = '{is_directory}');
    refused_code := s.refused_code || array_fill(
        '{is_directory}'::text, ARRAY[cardinality(refused_ord) - cardinality(s.refused_ord)]);
    passed_ord := s.repeated_ord || ARRAY(
        SELECT f.n FROM unnest(v_ords, v_codes) AS f(n, code) WHERE f.code = '{already_exists}');
END $$;

--- importer: Imports objects without bytes; ids p_first_id + ord - 1, owner and mode like the namespace's root
CREATE FUNCTION mantle.import_objects(
    p_principal int, p_ns bigint, p_pid bigint[], p_name text[], p_size bigint[], p_first_id bigint,
    p_synthetic boolean, p_modified timestamptz, OUT inserted bigint, OUT existing bigint, OUT refused_ord int[],
    OUT refused_code text[])
LANGUAGE plpgsql VOLATILE {as_owner} SET lock_timeout = '10s' SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    n int := cardinality(p_name);
    v_root mantle.meta;
    v_passed int[];
    v_skip int[];
    v_deltas mantle.delta[];
    v_distributed boolean := mantle.is_distributed();
BEGIN
    PERFORM mantle.raise_fault(mantle.batch_fault(n, ARRAY[cardinality(p_pid), cardinality(p_size)]));
    IF NOT v_distributed THEN
        PERFORM mantle.raise_fault(mantle.latch_pids('{}', p_pid));
    ELSIF (SELECT count(DISTINCT u.pid) FROM unnest(p_pid) AS u(pid)) > {BATCH_LATCHES_MAX} THEN
        PERFORM mantle.raise_fault('{batch_too_large}');
    END IF;
    SELECT * INTO v_root FROM mantle.meta m WHERE m.id = p_ns AND m.explicit IS NOT NULL AND m.pid = 0;
    IF v_root.id IS NULL THEN
        PERFORM mantle.raise_fault('{namespace_not_found}');
    ELSIF NOT EXISTS (SELECT FROM mantle.id_blocks b
                       WHERE b.first_id <= p_first_id AND b.last_id >= p_first_id + n - 1) THEN
        PERFORM mantle.raise_fault('{invalid_id}');
    END IF;
    v_root.mode := v_root.mode & {IMPORTED_MODE_MAX};
    IF v_distributed THEN
        SELECT r.inserted, r.existing, r.refused_ord, r.refused_code INTO inserted, existing, refused_ord, refused_code
          FROM mantle.import_objects_distributed(p_ns, v_root.owner, v_root.grp, v_root.mode, p_pid, p_name, p_size,
                                                 p_first_id, p_synthetic, p_modified) AS r;
        RETURN;
    END IF;
    SELECT r.refused_ord, r.refused_code, r.passed_ord INTO refused_ord, refused_code, v_passed
      FROM mantle.import_refusals(p_pid, p_name, p_size) AS r;
    v_skip := refused_ord || v_passed;
    existing := cardinality(v_passed);
    inserted := n - cardinality(v_skip);
    INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, size, synthetic, created, modified)
    SELECT u.pid, u.name, p_ns, p_first_id + u.n - 1, v_root.owner, v_root.grp, v_root.mode, 1, u.size, p_synthetic,
           now(), p_modified
      FROM unnest(p_pid, p_name, p_size) WITH ORDINALITY AS u(pid, name, size, n)
     WHERE v_skip = '{}' OR u.n NOT IN (SELECT s.n FROM unnest(v_skip) AS s(n));
    SELECT array_agg(ROW(p_ns, d.pid, d.n, 0, d.bytes)::mantle.delta) INTO v_deltas  -- any order
      FROM (SELECT u.pid, count(*) AS n, sum(u.size) AS bytes
              FROM unnest(p_pid, p_size) WITH ORDINALITY AS u(pid, size, n)
             WHERE v_skip = '{}' OR u.n NOT IN (SELECT s.n FROM unnest(v_skip) AS s(n)) GROUP BY u.pid) AS d;
    PERFORM mantle.add_deltas_waiting(v_deltas);
END $$;
