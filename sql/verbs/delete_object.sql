-- Whether the directory is now to be pruned is not looked at here (P17): it is put into the queue, once a call.
CREATE FUNCTION mantle.delete_object_one(
    p_principal int, p_ns bigint, p_pid bigint, p_name text, p_request uuid, p_hash bigint, p_lease text)
RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_old mantle.meta;
    v_new mantle.outcome := mantle.recall(p_principal, p_ns, p_request, p_hash, p_pid);
BEGIN
    IF NOT v_new IS NULL THEN
        RETURN v_new;
    END IF;
    v_new.code := coalesce(
        mantle.namespace_fault(p_ns), mantle.lease_fault(p_ns, p_lease), mantle.object_name_fault(p_name),
        CASE WHEN p_pid IS NULL OR p_request IS NULL OR p_principal IS NULL THEN '{invalid_argument}' END);
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    SELECT * INTO v_old FROM mantle.meta m
     WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0 AND m.ns = p_ns FOR UPDATE;
    IF v_old.id IS NULL THEN
        v_new.code := '{not_found}';
        RETURN v_new;
    END IF;
    IF NOT mantle.claim(p_principal, p_ns, p_request, p_hash, 'delete_object', p_pid, v_old.id, v_old.version) THEN
        RETURN mantle.recall(p_principal, p_ns, p_request, p_hash, p_pid);
    END IF;
    DELETE FROM mantle.meta m WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0;
    v_new.id := v_old.id;
    v_new.old_locator := v_old.locator;
    v_new.delta := ROW(p_ns, p_pid, -1, 0, -v_old.size);
    v_new.replayed := false;
    RETURN v_new;
END $$;
COMMENT ON FUNCTION mantle.delete_object_one(int, bigint, bigint, text, uuid, bigint, text) IS 'Deletes one object of a batch';

-- On Citus, for a session on another node than the one that has the directories: Citus sends the call there, one a
-- directory. A gateway is connected to the right one and never comes here, but for a shard that has just moved.
CREATE FUNCTION mantle.delete_object_delegated(
    p_at bigint, p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_request uuid[], p_hash bigint[],
    p_lease text[])
RETURNS TABLE (ord int, code text, id bigint, replayed boolean, flush_lsn pg_lsn, old_locator text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET citus.allow_nested_distributed_execution = on AS $$
BEGIN
    -- Else it would be sent on from here, to here.
    PERFORM mantle.fault(mantle.placement_fault(ARRAY[p_at]));
    RETURN QUERY SELECT * FROM mantle.delete_object(
        p_principal, p_ns, p_pid, p_name, p_request, p_hash, p_lease);
END $$;
COMMENT ON FUNCTION mantle.delete_object_delegated(
    bigint, int[], bigint[], bigint[], text[], uuid[], bigint[], text[]) IS
    'mantle.delete_object on the node of p_at, the one directory of all elements';

CREATE FUNCTION mantle.delete_object_distributed(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_request uuid[], p_hash bigint[], p_lease text[])
RETURNS TABLE (ord int, code text, id bigint, replayed boolean, flush_lsn pg_lsn, old_locator text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE g record;
BEGIN
    FOR g IN
        SELECT u.pid, array_agg(u.principal ORDER BY u.n) AS principal, array_agg(u.ns ORDER BY u.n) AS ns,
               array_agg(u.name ORDER BY u.n) AS name, array_agg(u.request ORDER BY u.n) AS request,
               array_agg(u.hash ORDER BY u.n) AS hash, array_agg(u.lease ORDER BY u.n) AS lease,
               array_agg(u.n ORDER BY u.n) AS ords, array_agg(u.pid) AS pids
          FROM unnest(p_principal, p_ns, p_pid, p_name, p_request, p_hash, p_lease)
               WITH ORDINALITY AS u(principal, ns, pid, name, request, hash, lease, n)
         GROUP BY u.pid ORDER BY u.pid
    LOOP
        -- Dynamic, with constants: only such a call is one that Citus sends elsewhere.
        RETURN QUERY EXECUTE
            'SELECT ($1)[r.ord]::int, code, id, replayed, flush_lsn, old_locator
               FROM mantle.delete_object_delegated($2, $3, $4, $5, $6, $7, $8, $9) AS r'
            USING g.ords, g.pid, g.principal, g.ns, g.pids, g.name, g.request, g.hash, g.lease;
    END LOOP;
END $$;
COMMENT ON FUNCTION mantle.delete_object_distributed(
    int[], bigint[], bigint[], text[], uuid[], bigint[], text[]) IS 'mantle.delete_object on the nodes of its directories';

CREATE FUNCTION mantle.delete_object(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_request uuid[], p_hash bigint[],
    p_lease text[] DEFAULT NULL)
RETURNS TABLE (ord int, code text, id bigint, replayed boolean, flush_lsn pg_lsn, old_locator text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_fault text;
    e record;
    o mantle.outcome;
    v_deltas mantle.delta[] := '{}';
BEGIN
    -- Assigned, not performed: that is an expression, which costs less than a statement.
    v_fault := mantle.batch_fault(cardinality(p_name), ARRAY[
        cardinality(p_principal), cardinality(p_ns), cardinality(p_pid), cardinality(p_request), cardinality(p_hash),
        coalesce(cardinality(p_lease), cardinality(p_name))]);
    IF v_fault IS NULL AND NOT mantle.is_local(p_pid) THEN
        RETURN QUERY SELECT * FROM mantle.delete_object_distributed(
            p_principal, p_ns, p_pid, p_name, p_request, p_hash, p_lease);
        RETURN;
    END IF;
    v_fault := coalesce(v_fault, mantle.latch_batch(p_pid, p_name));
    IF v_fault IS NOT NULL THEN
        PERFORM mantle.fault(v_fault);
    END IF;
    FOR e IN
        SELECT u.* FROM unnest(p_principal, p_ns, p_pid, p_name, p_request, p_hash, p_lease)
               WITH ORDINALITY AS u(principal, ns, pid, name, request, hash, lease, n)
         ORDER BY u.pid, u.name COLLATE "C", u.n
    LOOP
        o := mantle.delete_object_one(e.principal, e.ns, e.pid, e.name, e.request, e.hash, e.lease);
        IF (o.delta).pid IS NOT NULL THEN v_deltas := v_deltas || o.delta; END IF;
        ord := e.n; code := o.code; id := o.id; replayed := coalesce(o.replayed, false);
        flush_lsn := o.flush_lsn; old_locator := o.old_locator;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.queue_pruning(d.pid, d.pid) FROM (SELECT DISTINCT u.pid FROM unnest(v_deltas) AS u) AS d;
    PERFORM mantle.finish(0, '{}', v_deltas);
    v_fault := mantle.placement_fault(p_pid);
    IF v_fault IS NOT NULL THEN
        PERFORM mantle.fault(v_fault);
    END IF;
END $$;
COMMENT ON FUNCTION mantle.delete_object(int[], bigint[], bigint[], text[], uuid[], bigint[], text[]) IS
    'Deletes objects; answers the data locator that is free now';
GRANT EXECUTE ON FUNCTION mantle.delete_object(int[], bigint[], bigint[], text[], uuid[], bigint[], text[]) TO mantle_gateway;
