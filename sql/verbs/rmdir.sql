-- One directory. Latched: the parent shared, the directory exclusively, its name exclusively.
CREATE FUNCTION mantle.rmdir_one(
    p_principal int, p_ns bigint, p_pid bigint, p_name text, p_id bigint, p_request uuid, p_hash bigint)
RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_old mantle.meta;
    v_new mantle.outcome;
BEGIN
    SELECT * INTO v_old FROM mantle.meta m WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0 FOR UPDATE;
    v_new.code := CASE WHEN v_old.id IS NULL OR v_old.ns <> p_ns THEN 'MT010'
                       WHEN v_old.id <> p_id THEN 'MT018'
                       WHEN NOT mantle.is_empty(p_id) THEN 'MT017' END;
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    IF NOT mantle.claim(p_principal, p_ns, p_request, p_hash, 'rmdir', p_pid, p_id, v_old.version + 1) THEN
        RETURN mantle.recall(p_principal, p_ns, p_request, p_hash);
    END IF;
    PERFORM mantle.bury(p_ns, p_id);
    DELETE FROM mantle.meta m WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0;
    INSERT INTO mantle.prune_queue (id) VALUES (p_pid);
    v_new.id := p_id;
    v_new.version := v_old.version + 1;
    v_new.change := ROW(true, p_ns, p_pid, p_name, p_id, v_old.version + 1, v_old.owner, v_old.grp, v_old.mode, p_principal,
                        p_request);
    v_new.delta := ROW(p_ns, p_pid, -1, -1, 0);
    v_new.replayed := false;
    RETURN v_new;
END $$;
COMMENT ON FUNCTION mantle.rmdir_one(int, bigint, bigint, text, bigint, uuid, bigint) IS 'Removes one directory of a batch';
REVOKE ALL ON FUNCTION mantle.rmdir_one(int, bigint, bigint, text, bigint, uuid, bigint) FROM PUBLIC;

-- Looks for entries without the latch first and fails fast; then latches, under a lock_timeout, and looks again
-- (PROTOCOLS 11).
CREATE FUNCTION mantle.rmdir(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_request uuid[], p_hash bigint[])
RETURNS TABLE (ord int, code text, id bigint, replayed boolean, flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET lock_timeout = '2s' AS $$
DECLARE
    c mantle.batch_context;
    e record;
    o mantle.outcome;
    v_busy bigint[];
    v_changes mantle.directory_change[] := '{}';
    v_deltas mantle.delta[] := '{}';
BEGIN
    PERFORM mantle.fault(mantle.batch_fault(cardinality(p_name), ARRAY[
        cardinality(p_principal), cardinality(p_ns), cardinality(p_pid), cardinality(p_id), cardinality(p_request), cardinality(p_hash)]));
    v_busy := ARRAY(SELECT m.id FROM unnest(p_pid, p_name, p_id) AS u(pid, name, id)
                      JOIN mantle.meta m ON m.pid = u.pid AND m.name = u.name AND m.ts = 0 AND m.id = u.id
                     WHERE NOT mantle.is_empty(m.id));
    PERFORM mantle.fault(mantle.latch_entries(
        p_pid, p_name, ARRAY(SELECT u.id FROM unnest(p_id) AS u(id) WHERE u.id <> ALL (v_busy))));
    c := mantle.batch_context(p_principal, p_ns, p_pid, '{}', p_request);
    FOR e IN
        SELECT u.*, CASE
                 WHEN u.ns IS NULL OR u.ns = ANY (c.missing) THEN 'MT011'
                 WHEN mantle.directory_name_fault(u.name) IS NOT NULL THEN mantle.directory_name_fault(u.name)
                 WHEN u.pid IS NULL OR u.pid < 1024 OR u.id IS NULL OR u.request IS NULL THEN 'MT006'
                 WHEN u.id = ANY (v_busy) THEN 'MT017' END AS refusal
          FROM unnest(p_principal, p_ns, p_pid, p_name, p_id, p_request, p_hash)
               WITH ORDINALITY AS u(principal, ns, pid, name, id, request, hash, n)
         ORDER BY u.pid, u.name COLLATE "C", u.n
    LOOP
        o := NULL;
        IF e.request = ANY (c.known) THEN
            o := mantle.recall(e.principal, e.ns, e.request, e.hash);
        END IF;
        IF o IS NULL AND e.refusal IS NULL THEN
            o := mantle.rmdir_one(e.principal, e.ns, e.pid, e.name, e.id, e.request, e.hash);
        ELSIF o IS NULL THEN
            o.code := e.refusal;
        END IF;
        IF (o.change).id IS NOT NULL THEN v_changes := v_changes || o.change; END IF;
        IF (o.delta).pid IS NOT NULL THEN v_deltas := v_deltas || o.delta; END IF;
        ord := e.n; code := o.code; id := o.id; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.finish(0, v_changes, v_deltas);
END $$;
COMMENT ON FUNCTION mantle.rmdir(int[], bigint[], bigint[], text[], bigint[], uuid[], bigint[]) IS
    'Removes empty directories. MT010 not there, MT018 another one by now, MT017 not empty';
REVOKE ALL ON FUNCTION mantle.rmdir(int[], bigint[], bigint[], text[], bigint[], uuid[], bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.rmdir(int[], bigint[], bigint[], text[], bigint[], uuid[], bigint[]) TO mantle_gateway;
