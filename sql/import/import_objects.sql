-- Bulk import of objects, set-based. Exclusive latches of the pids stand for the names' latches, and let counts go
-- straight into primary attribute records (see import_directories). An object that exists is counted, not changed: so a
-- call can be repeated.

-- Names refused by rule, by a tombstone, or by a directory of that name. Directories are looked for only below pids that
-- have subdirectories at all.
CREATE FUNCTION mantle.import_refusals(
    p_ns bigint, p_pid bigint[], p_name text[], p_size bigint[], OUT refused_ord int[], OUT refused_code text[])
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    v_removed bigint[];
    v_branching bigint[];
BEGIN
    SELECT array_agg(a.pid) FILTER (WHERE a.removed), coalesce(array_agg(a.pid) FILTER (WHERE a.subdirectories > 0), '{}')
      INTO v_removed, v_branching
      FROM (SELECT m.pid, bool_or(m.removed) AS removed, sum(m.subdirectories) AS subdirectories FROM mantle.meta m
             WHERE m.pid = ANY (ARRAY(SELECT DISTINCT u.pid FROM unnest(p_pid) AS u(pid))) AND m.name = '/_ATTR'
             GROUP BY m.pid) AS a;
    SELECT array_agg(r.n), array_agg(r.code) INTO refused_ord, refused_code
      FROM (SELECT u.n, CASE
                WHEN mantle.object_name_fault(u.name) IS NOT NULL THEN mantle.object_name_fault(u.name)
                WHEN (u.pid >= 1024 AND u.size >= 0) IS NOT TRUE THEN 'MT006'
                WHEN u.pid = ANY (v_removed) THEN 'MT018'
                WHEN u.pid = ANY (v_branching) AND EXISTS (
                     SELECT FROM mantle.meta m WHERE m.pid = u.pid AND m.name = u.name || '/' AND m.ts = 0 OFFSET 0)
                    THEN 'MT015' END AS code
              FROM unnest(p_pid, p_name, p_size) WITH ORDINALITY AS u(pid, name, size, n)) AS r
     WHERE r.code IS NOT NULL;
END $$;
COMMENT ON FUNCTION mantle.import_refusals(bigint, bigint[], text[], bigint[]) IS 'Which objects of an import are refused, and why';
REVOKE ALL ON FUNCTION mantle.import_refusals(bigint, bigint[], text[], bigint[]) FROM PUBLIC;

CREATE FUNCTION mantle.import_objects(
    p_principal int, p_ns bigint, p_pid bigint[], p_name text[], p_size bigint[], p_first_id bigint, p_synthetic boolean,
    p_modified timestamptz,
    OUT inserted bigint, OUT existing bigint, OUT refused_ord int[], OUT refused_code text[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '10s' AS $$
#variable_conflict use_column
DECLARE
    n int := cardinality(p_name);
    v_root mantle.meta;
    v_deltas mantle.delta[];
BEGIN
    PERFORM mantle.fault(mantle.batch_fault(n, ARRAY[cardinality(p_pid), cardinality(p_size)]));
    PERFORM mantle.fault(mantle.latch_pids('{}', p_pid));
    SELECT * INTO v_root FROM mantle.meta m WHERE m.id = p_ns AND m.explicit IS NOT NULL AND m.pid = 0;
    IF v_root.id IS NULL THEN
        PERFORM mantle.fault('MT011');
    ELSIF NOT EXISTS (SELECT FROM mantle.id_blocks b WHERE b.first_id <= p_first_id AND b.last_id >= p_first_id + n - 1) THEN
        PERFORM mantle.fault('MT040');
    END IF;
    SELECT r.refused_ord, r.refused_code INTO refused_ord, refused_code
      FROM mantle.import_refusals(p_ns, p_pid, p_name, p_size) AS r;
    WITH new AS (
        INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, size, synthetic, created, modified)
        SELECT u.pid, u.name, p_ns, p_first_id + u.n - 1, v_root.owner, v_root.grp, v_root.mode & 438, 1, u.size,
               p_synthetic, now(), p_modified
          FROM unnest(p_pid, p_name, p_size) WITH ORDINALITY AS u(pid, name, size, n)
         WHERE refused_ord IS NULL OR u.n <> ALL (refused_ord)
        ON CONFLICT (pid, name, ts) DO NOTHING
        RETURNING pid, size),
    counted AS (SELECT pid, count(*) AS n, sum(size) AS bytes FROM new GROUP BY pid)
    SELECT coalesce(sum(c.n), 0), array_agg(ROW(c.pid, c.n, 0, c.bytes)::mantle.delta) INTO inserted, v_deltas FROM counted c;
    existing := n - inserted - coalesce(cardinality(refused_ord), 0);
    IF v_deltas IS NOT NULL THEN
        PERFORM mantle.import_counts(p_ns, v_deltas);
    END IF;
END $$;
COMMENT ON FUNCTION mantle.import_objects(int, bigint, bigint[], text[], bigint[], bigint, boolean, timestamptz) IS
    'Imports objects without bytes; ids p_first_id + ord - 1, owner and mode like the namespace''s root';
REVOKE ALL ON FUNCTION mantle.import_objects(int, bigint, bigint[], text[], bigint[], bigint, boolean, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.import_objects(int, bigint, bigint[], text[], bigint[], bigint, boolean, timestamptz)
    TO mantle_gateway;
