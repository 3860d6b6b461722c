-- One entry, directory or object. Its name is latched, as whatever a mutation reads of an entry.
CREATE FUNCTION mantle.set_attributes_one(
    p_principal int, p_ns bigint, p_pid bigint, p_name text, p_id bigint, p_owner int, p_grp int, p_mode int,
    p_user_metadata jsonb, p_explicit boolean, p_request uuid, p_hash bigint)
RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_old mantle.meta;
    v_new mantle.outcome;
BEGIN
    SELECT * INTO v_old FROM mantle.meta m
     WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0 AND m.ns = p_ns FOR UPDATE;
    v_new.code := CASE WHEN v_old.id IS NULL THEN 'MT010' WHEN v_old.id <> p_id THEN 'MT018'
                       WHEN p_explicit IS NOT NULL AND (v_old.explicit IS NULL OR p_pid = 0) THEN 'MT006' END;
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    v_new.id := v_old.id;
    v_new.version := v_old.version + 1;
    IF NOT mantle.claim(p_principal, p_ns, p_request, p_hash, 'set_attributes', p_pid, v_new.id, v_new.version) THEN
        RETURN mantle.recall(p_principal, p_ns, p_request, p_hash);
    END IF;
    UPDATE mantle.meta m
       SET owner = coalesce(p_owner, m.owner), grp = coalesce(p_grp, m.grp), mode = coalesce(p_mode, m.mode),
           user_metadata = coalesce(p_user_metadata, m.user_metadata), explicit = coalesce(p_explicit, m.explicit),
           version = v_new.version
     WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0
    RETURNING m.* INTO v_old;
    IF v_old.explicit IS NOT NULL THEN
        v_new.change := ROW(false, p_ns, p_pid, p_name, v_old.id, v_new.version, v_old.owner, v_old.grp, v_old.mode,
                            p_principal, p_request);
    END IF;
    IF NOT p_explicit THEN
        -- Its last entry may have gone already.
        INSERT INTO mantle.prune_queue (id) VALUES (p_id);
    END IF;
    IF p_pid = 0 AND p_owner IS NOT NULL THEN
        UPDATE mantle.namespaces n SET owner = p_owner WHERE n.ns = v_old.id;
    END IF;
    v_new.replayed := false;
    RETURN v_new;
END $$;
COMMENT ON FUNCTION mantle.set_attributes_one(int, bigint, bigint, text, bigint, int, int, int, jsonb, boolean, uuid, bigint) IS
    'Changes attributes of one entry of a batch';
REVOKE ALL ON FUNCTION mantle.set_attributes_one(int, bigint, bigint, text, bigint, int, int, int, jsonb, boolean, uuid, bigint)
    FROM PUBLIC;

CREATE FUNCTION mantle.set_attributes(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_owner int[], p_grp int[], p_mode int[],
    p_user_metadata jsonb[], p_explicit boolean[], p_request uuid[], p_hash bigint[])
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_fault text;
    c mantle.batch_context;
    e record;
    o mantle.outcome;
    v_changes mantle.directory_change[] := '{}';
BEGIN
    -- Assigned, not performed: that is an expression, which costs less than a statement.
    v_fault := coalesce(mantle.batch_fault(cardinality(p_name), ARRAY[
        cardinality(p_principal), cardinality(p_ns), cardinality(p_pid), cardinality(p_id), cardinality(p_owner),
        cardinality(p_grp), cardinality(p_mode), cardinality(p_user_metadata), cardinality(p_explicit),
        cardinality(p_request), cardinality(p_hash)]), mantle.latch_batch(p_pid, p_name));
    IF v_fault IS NOT NULL THEN
        PERFORM mantle.fault(v_fault);
    END IF;
    c := mantle.batch_context(p_principal, p_ns, '{}', '{}', p_request);
    FOR e IN
        SELECT u.*, CASE
                 WHEN u.ns IS NULL OR u.ns = ANY (c.missing) THEN 'MT011'
                 WHEN mantle.entry_name_fault(u.name) IS NOT NULL THEN mantle.entry_name_fault(u.name)
                 WHEN u.pid IS NULL OR u.id IS NULL OR u.request IS NULL OR u.owner < 0 OR u.grp < 0
                      OR u.mode NOT BETWEEN 0 AND 511 THEN 'MT006' END AS refusal
          FROM unnest(p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_user_metadata, p_explicit, p_request, p_hash)
               WITH ORDINALITY AS u(principal, ns, pid, name, id, owner, grp, mode, user_metadata, explicit, request, hash, n)
         ORDER BY u.pid, u.name COLLATE "C", u.n
    LOOP
        o := NULL;
        IF e.request = ANY (c.known) THEN
            o := mantle.recall(e.principal, e.ns, e.request, e.hash);
        END IF;
        IF o IS NULL AND e.refusal IS NULL THEN
            o := mantle.set_attributes_one(e.principal, e.ns, e.pid, e.name, e.id, e.owner, e.grp, e.mode,
                                           e.user_metadata, e.explicit, e.request, e.hash);
        ELSIF o IS NULL THEN
            o.code := e.refusal;
        END IF;
        IF (o.change).id IS NOT NULL THEN v_changes := v_changes || o.change; END IF;
        ord := e.n; code := o.code; id := o.id; version := o.version;
        replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.finish(0, v_changes, '{}');
END $$;
COMMENT ON FUNCTION mantle.set_attributes(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], jsonb[], boolean[], uuid[], bigint[]) IS
    'Changes owner, group, mode, user metadata, or whether a directory stays when empty (explicit); NULL leaves as it is';
REVOKE ALL ON FUNCTION mantle.set_attributes(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], jsonb[], boolean[], uuid[], bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.set_attributes(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], jsonb[], boolean[], uuid[], bigint[]) TO mantle_gateway;
