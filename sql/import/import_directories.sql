-- Bulk import of implicit directories. Parents come before their children, in the same call or an earlier one. If a
-- parent exists already (`already_exists`, with its id), its children go into the existing one, so a call can be
-- repeated.
-- Exclusive latches of every parent that exists outside of the call replace the latches of names, because creates hold
-- them shared. So counts go directly into primary attribute records, and compaction has no work (P10 forbids this only
-- under a shared latch).

--- Finds which elements that the plan has not settled are refused or exist, below the parents that it has found
CREATE FUNCTION mantle.import_lookup(
    p_pid bigint[], p_name text[], p_planned text[], p_fresh bigint[], INOUT p_code text[], INOUT p_existing bigint[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_removed bigint[] := ARRAY(SELECT m.pid FROM mantle.meta m
                                 WHERE m.pid = ANY (p_fresh) AND m.name = '/_ATTR' AND m.ts = 0 AND m.removed);
BEGIN
    SELECT array_agg(coalesce(u.code, CASE
                WHEN NOT u.looked_up THEN NULL
                WHEN u.pid = ANY (v_removed) THEN '{directory_removed}'
                WHEN d.id IS NOT NULL THEN '{already_exists}'
                WHEN o.id IS NOT NULL THEN '{is_object}' END) ORDER BY u.n),
           array_agg(coalesce(u.existing, CASE WHEN u.looked_up THEN d.id END) ORDER BY u.n)
      INTO p_code, p_existing
      FROM (SELECT *, x.planned IS NULL AND x.pid = ANY (p_fresh) AS looked_up
              FROM unnest(p_pid, p_name, p_planned, p_code, p_existing)
                   WITH ORDINALITY AS x(pid, name, planned, code, existing, n)) AS u
      LEFT JOIN LATERAL (SELECT m.id FROM mantle.meta m
                          WHERE u.looked_up AND m.pid = u.pid AND m.name = u.name AND m.ts = 0 OFFSET 0) AS d ON true
      LEFT JOIN LATERAL (SELECT m.id FROM mantle.meta m
                          WHERE u.looked_up AND m.pid = u.pid AND m.name = left(u.name, -1) AND m.ts = 0
                         OFFSET 0) AS o ON true;
END $$;

--- Inserts the directories of an import that the plan left, counts them, emits one message
CREATE FUNCTION mantle.import_insert(p_ns bigint, p_pid bigint[], p_name text[], p_id bigint[], p_code text[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_root mantle.meta;
    v_deltas mantle.delta[];
BEGIN
    SELECT * INTO v_root FROM mantle.meta m WHERE m.id = p_ns AND m.explicit IS NOT NULL AND m.pid = 0;
    INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, explicit, created)
    SELECT u.pid, u.name, p_ns, u.id, v_root.owner, v_root.grp, v_root.mode, 1, false, now()
      FROM unnest(p_pid, p_name, p_id, p_code) AS u(pid, name, id, code) WHERE u.code IS NULL;
    SELECT array_agg(ROW(p_ns, u.pid, u.n, u.n, 0)::mantle.delta) INTO v_deltas  -- any order
      FROM (SELECT x.pid, count(*) AS n FROM unnest(p_pid, p_code) AS x(pid, code)
             WHERE x.code IS NULL GROUP BY x.pid) AS u;
    IF v_deltas IS NULL THEN
        RETURN;
    END IF;
    PERFORM mantle.add_deltas_waiting(v_deltas);
    -- Parents come before their children in the message, too.
    PERFORM mantle.raise_fault(mantle.emit_directories(
                NULL, 0, array_fill(false, e.size), array_fill(p_ns, e.size), e.pids, e.names, e.ids,
                array_fill(1::bigint, e.size), array_fill(v_root.owner, e.size), array_fill(v_root.grp, e.size),
                array_fill(v_root.mode, e.size), NULL, NULL))
       FROM (SELECT array_agg(u.pid ORDER BY u.n) AS pids, array_agg(u.name ORDER BY u.n) AS names,
                    array_agg(u.id ORDER BY u.n) AS ids, ARRAY[count(*)::int] AS size
               FROM unnest(p_pid, p_name, p_id, p_code) WITH ORDINALITY AS u(pid, name, id, code, n)
              WHERE u.code IS NULL) AS e;
END $$;

--- importer: Imports implicit directories, parents before children; answers only those not inserted, {already_exists}
--- with the existing id
CREATE FUNCTION mantle.import_directories(p_principal int, p_ns bigint, p_pid bigint[], p_name text[], p_id bigint[])
RETURNS TABLE (ord int, code text, id bigint) LANGUAGE plpgsql VOLATILE {as_owner} SET lock_timeout = '10s' AS $$
#variable_conflict use_column
DECLARE
    v_unrecorded bigint[];
    v_missing text := mantle.namespace_fault(p_ns);
    v_code text[];      -- what the rows and the tables say
    v_existing bigint[];
    v_pid bigint[];     -- the place that the plan gives it
    v_planned text[];
    v_planned_existing bigint[];
    v_fresh bigint[];
    v_latched bigint[] := '{}';
    v_distributed boolean := mantle.is_distributed();
BEGIN
    PERFORM mantle.raise_fault(mantle.batch_fault(cardinality(p_name), ARRAY[cardinality(p_pid), cardinality(p_id)]));
    -- On Citus, directories that the call makes are latched too.
    IF v_distributed AND (SELECT count(DISTINCT u.pid) FROM unnest(p_pid) AS u(pid)) > {BATCH_LATCHES_MAX} THEN
        PERFORM mantle.raise_fault('{batch_too_large}');
    END IF;
    -- Usually all ids are from one block; then its two ends suffice.
    v_unrecorded := CASE WHEN NOT EXISTS (
            SELECT FROM mantle.id_blocks b
              JOIN (SELECT min(u.id) AS low, max(u.id) AS high FROM unnest(p_id) AS u(id)) AS i
                ON b.first_id <= i.low AND b.last_id >= i.high)
        THEN ARRAY(SELECT u.id FROM unnest(p_id) AS u(id) WHERE mantle.id_fault(u.id) IS NOT NULL) ELSE '{}' END;
    SELECT array_agg(coalesce(v_missing, mantle.directory_name_fault(u.name), CASE
               WHEN u.pid IS NULL OR u.pid < {ID_MIN} THEN '{invalid_argument}'
               WHEN u.id IS NULL OR u.id = ANY (v_unrecorded) THEN '{invalid_id}' END) ORDER BY u.n),
           array_fill(NULL::bigint, ARRAY[count(*)::int])
      INTO v_code, v_existing FROM unnest(p_pid, p_name, p_id) WITH ORDINALITY AS u(pid, name, id, n);
    LOOP
        -- Each pass moves the children of parents that the pass before found to their real places.
        SELECT array_agg(p.pid ORDER BY p.ord), array_agg(p.code ORDER BY p.ord),
               array_agg(p.existing ORDER BY p.ord),
               array_agg(DISTINCT p.pid) FILTER (WHERE p.outside AND p.code IS NULL AND p.pid <> ALL (v_latched))
          INTO v_pid, v_planned, v_planned_existing, v_fresh
          FROM mantle.import_plan(p_pid, p_name, p_id, v_code, v_existing) AS p;
        EXIT WHEN v_fresh IS NULL;
        v_latched := v_latched || v_fresh;
        IF cardinality(v_latched) > {BATCH_LATCHES_MAX} THEN
            PERFORM mantle.raise_fault('{batch_too_large}');
        END IF;
        IF v_distributed THEN
            SELECT l.p_code, l.p_existing INTO v_code, v_existing
              FROM mantle.import_lookup_distributed(v_pid, p_name, v_planned, v_fresh, v_code, v_existing) AS l;
        ELSE
            PERFORM mantle.raise_fault(mantle.latch_pids('{}', v_fresh));
            SELECT l.p_code, l.p_existing INTO v_code, v_existing
              FROM mantle.import_lookup(v_pid, p_name, v_planned, v_fresh, v_code, v_existing) AS l;
        END IF;
    END LOOP;
    IF v_distributed THEN
        PERFORM mantle.import_insert_distributed(p_ns, v_pid, p_name, p_id, v_planned);
    ELSE
        PERFORM mantle.import_insert(p_ns, v_pid, p_name, p_id, v_planned);
    END IF;
    RETURN QUERY SELECT u.n::int, u.code, u.existing
                   FROM unnest(v_planned, v_planned_existing) WITH ORDINALITY AS u(code, existing, n)
                  WHERE u.code IS NOT NULL;
END $$;
