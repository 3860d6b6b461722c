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
    v_new.delta := ROW(p_pid, -1, 0, -v_old.size);
    v_new.replayed := false;
    RETURN v_new;
END $$;
COMMENT ON FUNCTION mantle.delete_object_one(int, bigint, bigint, text, uuid, bigint) IS 'Deletes one object of a batch';
REVOKE ALL ON FUNCTION mantle.delete_object_one(int, bigint, bigint, text, uuid, bigint) FROM PUBLIC;

CREATE FUNCTION mantle.delete_object(
    p_principal int, p_ns bigint, p_pid bigint[], p_name text[], p_request uuid[], p_hash bigint[])
RETURNS TABLE (ord int, code text, id bigint, replayed boolean, flush_lsn pg_lsn, old_locator text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    c mantle.batch_context;
    e record;
    o mantle.outcome;
    v_deltas mantle.delta[] := '{}';
BEGIN
    PERFORM mantle.fault(mantle.batch_fault(cardinality(p_name), ARRAY[
        cardinality(p_pid), cardinality(p_request), cardinality(p_hash)]));
    PERFORM mantle.fault(mantle.latch_entries(p_pid, p_name));
    c := mantle.batch_context(p_principal, p_ns, '{}', '{}', p_request);
    FOR e IN
        SELECT u.*, CASE
                 WHEN NOT c.ns_exists THEN 'MT011'
                 WHEN mantle.object_name_fault(u.name) IS NOT NULL THEN mantle.object_name_fault(u.name)
                 WHEN u.pid IS NULL OR u.request IS NULL THEN 'MT006' END AS refusal
          FROM unnest(p_pid, p_name, p_request, p_hash) WITH ORDINALITY AS u(pid, name, request, hash, n)
         ORDER BY u.pid, u.name COLLATE "C", u.n
    LOOP
        o := NULL;
        IF e.request = ANY (c.known) THEN
            o := mantle.recall(p_principal, p_ns, e.request, e.hash);
        ELSIF e.refusal IS NOT NULL THEN
            o.code := e.refusal;
        ELSE
            o := mantle.delete_object_one(p_principal, p_ns, e.pid, e.name, e.request, e.hash);
        END IF;
        IF (o.delta).pid IS NOT NULL THEN v_deltas := v_deltas || o.delta; END IF;
        ord := e.n; code := o.code; id := o.id; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        old_locator := o.old_locator;
        RETURN NEXT;
    END LOOP;
    INSERT INTO mantle.prune_queue (id) SELECT DISTINCT d.pid FROM unnest(v_deltas) AS d;
    PERFORM mantle.finish(p_principal, p_ns, 0, p_ns, '{}', v_deltas);
END $$;
COMMENT ON FUNCTION mantle.delete_object(int, bigint, bigint[], text[], uuid[], bigint[]) IS
    'Deletes objects; answers the data locator that is free now';
REVOKE ALL ON FUNCTION mantle.delete_object(int, bigint, bigint[], text[], uuid[], bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.delete_object(int, bigint, bigint[], text[], uuid[], bigint[]) TO mantle_gateway;
