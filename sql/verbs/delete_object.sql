-- Whether the directory is now to be pruned is not looked at here (PROTOCOLS 17): it is put into the queue, once a call.
CREATE FUNCTION mantle.delete_object_one(
    p_principal int, p_ns bigint, p_pid bigint, p_name text, p_request uuid, p_hash bigint)
RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_old mantle.meta;
    v_new mantle.outcome;
BEGIN
    SELECT * INTO v_old FROM mantle.meta m
     WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0 AND m.ns = p_ns FOR UPDATE;
    IF v_old.id IS NULL THEN
        v_new.code := 'MT010';
        RETURN v_new;
    END IF;
    IF NOT mantle.claim(p_principal, p_ns, p_request, p_hash, 'delete_object', p_pid, v_old.id, v_old.version) THEN
        RETURN mantle.recall(p_principal, p_ns, p_request, p_hash);
    END IF;
    DELETE FROM mantle.meta m WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0;
    v_new.id := v_old.id;
    v_new.old_locator := v_old.locator;
    v_new.delta := ROW(p_ns, p_pid, -1, 0, -v_old.size);
    v_new.replayed := false;
    RETURN v_new;
END $$;
COMMENT ON FUNCTION mantle.delete_object_one(int, bigint, bigint, text, uuid, bigint) IS 'Deletes one object of a batch';
REVOKE ALL ON FUNCTION mantle.delete_object_one(int, bigint, bigint, text, uuid, bigint) FROM PUBLIC;

-- Why an element cannot be; NULL: nothing is known against it.
CREATE FUNCTION mantle.delete_object_refusal(c mantle.batch_context, ns bigint, pid bigint, name text, request uuid)
RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        CASE WHEN ns IS NULL OR ns = ANY (c.missing) THEN 'MT011' END,
        mantle.object_name_fault(name),
        CASE WHEN pid IS NULL OR request IS NULL THEN 'MT006' END)
$$;
COMMENT ON FUNCTION mantle.delete_object_refusal(mantle.batch_context, bigint, bigint, text, uuid) IS
    'Why an object cannot be deleted';
REVOKE ALL ON FUNCTION mantle.delete_object_refusal(mantle.batch_context, bigint, bigint, text, uuid) FROM PUBLIC;

-- The objects of a batch that are there, in one statement, under one snapshot taken after the latches. Left to the loop:
-- what is not there, is refused, or was answered before.
CREATE FUNCTION mantle.delete_objects_at_once(
    c mantle.batch_context, p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_request uuid[], p_hash bigint[],
    OUT ords int[], OUT ids bigint[], OUT locators text[], OUT deltas mantle.delta[])
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    WITH found AS MATERIALIZED (
        SELECT u.*, o.id, o.version
          FROM unnest(p_principal, p_ns, p_pid, p_name, p_request, p_hash)
               WITH ORDINALITY AS u(principal, ns, pid, name, request, hash, n)
         CROSS JOIN LATERAL (SELECT m.id, m.version FROM mantle.meta m
                              WHERE m.pid = u.pid AND m.name = u.name AND m.ts = 0 AND m.ns = u.ns OFFSET 0) AS o
         WHERE u.principal IS NOT NULL AND mantle.delete_object_refusal(c, u.ns, u.pid, u.name, u.request) IS NULL),
    claimed AS (
        INSERT INTO mantle.requests (ns, principal, request_id, request_hash, verb, pid, id, version)
        SELECT f.ns, f.principal, f.request, coalesce(f.hash, 0), 'delete_object', f.pid, f.id, f.version FROM found AS f
        ON CONFLICT DO NOTHING RETURNING id),
    gone AS (
        DELETE FROM mantle.meta m USING found AS f
         WHERE f.id IN (SELECT q.id FROM claimed AS q) AND m.pid = f.pid AND m.name = f.name AND m.ts = 0
        RETURNING f.n, m.ns, m.pid, m.id, m.size, m.locator)
    SELECT a.*, (SELECT array_agg(ROW(d.ns, d.pid, -d.n, 0, -d.bytes)::mantle.delta)
                   FROM (SELECT g.ns, g.pid, count(*) AS n, sum(g.size) AS bytes FROM gone AS g GROUP BY g.ns, g.pid) AS d)
      INTO ords, ids, locators, deltas
      FROM (SELECT array_agg(g.n::int), array_agg(g.id), array_agg(g.locator) FROM gone AS g) AS a;
END $$;
COMMENT ON FUNCTION mantle.delete_objects_at_once(
    mantle.batch_context, int[], bigint[], bigint[], text[], uuid[], bigint[]) IS
    'Deletes the objects of a batch that are there; answers which, with their data locators';
REVOKE ALL ON FUNCTION mantle.delete_objects_at_once(
    mantle.batch_context, int[], bigint[], bigint[], text[], uuid[], bigint[]) FROM PUBLIC;

CREATE FUNCTION mantle.delete_object(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_request uuid[], p_hash bigint[])
RETURNS TABLE (ord int, code text, id bigint, replayed boolean, flush_lsn pg_lsn, old_locator text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_fault text;
    c mantle.batch_context;
    e record;
    o mantle.outcome;
    v_gone record;
    v_ords int[] := '{}';
    v_deltas mantle.delta[] := '{}';
BEGIN
    -- Assigned, not performed: that is an expression, which costs less than a statement.
    v_fault := coalesce(mantle.batch_fault(cardinality(p_name), ARRAY[
        cardinality(p_principal), cardinality(p_ns), cardinality(p_pid), cardinality(p_request), cardinality(p_hash)]),
        mantle.latch_batch(p_pid, p_name));
    IF v_fault IS NOT NULL THEN
        PERFORM mantle.fault(v_fault);
    END IF;
    c := mantle.batch_context(p_principal, p_ns, '{}', '{}', p_request);
    IF mantle.is_set(p_pid, p_name, p_request) THEN
        SELECT * INTO v_gone FROM mantle.delete_objects_at_once(c, p_principal, p_ns, p_pid, p_name, p_request, p_hash) AS a;
        v_ords := coalesce(v_gone.ords, '{}');
        v_deltas := coalesce(v_gone.deltas, '{}');
        RETURN QUERY SELECT u.ord, NULL::text, u.id, false, NULL::pg_lsn, u.locator
                       FROM unnest(v_gone.ords, v_gone.ids, v_gone.locators) AS u(ord, id, locator);
    END IF;
    FOR e IN
        SELECT u.*, mantle.delete_object_refusal(c, u.ns, u.pid, u.name, u.request) AS refusal
          FROM unnest(p_principal, p_ns, p_pid, p_name, p_request, p_hash)
               WITH ORDINALITY AS u(principal, ns, pid, name, request, hash, n)
         WHERE v_ords = '{}' OR u.n NOT IN (SELECT unnest(v_ords))
         ORDER BY u.pid, u.name COLLATE "C", u.n
    LOOP
        o := NULL;
        IF e.request = ANY (c.known) THEN
            o := mantle.recall(e.principal, e.ns, e.request, e.hash);
        END IF;
        IF o IS NULL AND e.refusal IS NULL THEN
            o := mantle.delete_object_one(e.principal, e.ns, e.pid, e.name, e.request, e.hash);
        ELSIF o IS NULL THEN
            o.code := e.refusal;
        END IF;
        IF (o.delta).pid IS NOT NULL THEN v_deltas := v_deltas || o.delta; END IF;
        ord := e.n; code := o.code; id := o.id; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        old_locator := o.old_locator;
        RETURN NEXT;
    END LOOP;
    INSERT INTO mantle.prune_queue (id) SELECT DISTINCT d.pid FROM unnest(v_deltas) AS d;
    PERFORM mantle.finish(0, '{}', v_deltas);
END $$;
COMMENT ON FUNCTION mantle.delete_object(int[], bigint[], bigint[], text[], uuid[], bigint[]) IS
    'Deletes objects; answers the data locator that is free now';
REVOKE ALL ON FUNCTION mantle.delete_object(int[], bigint[], bigint[], text[], uuid[], bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.delete_object(int[], bigint[], bigint[], text[], uuid[], bigint[]) TO mantle_gateway;
