-- One entry, directory or object. Its name is latched, as whatever a mutation reads of an entry.
CREATE FUNCTION mantle.set_attributes_one(
    p_principal int, p_ns bigint, p_pid bigint, p_name text, p_id bigint, p_owner int, p_grp int, p_mode int,
    p_user_metadata jsonb, p_explicit boolean, p_request uuid, p_hash bigint, p_lease text)
RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_old mantle.meta;
    v_new mantle.outcome := mantle.recall(p_principal, p_ns, p_request, p_hash, p_pid);
BEGIN
    IF NOT v_new IS NULL THEN
        RETURN v_new;
    END IF;
    v_new.code := coalesce(
        mantle.namespace_fault(p_ns), mantle.lease_fault(p_ns, p_lease), mantle.entry_name_fault(p_name),
        CASE WHEN p_pid IS NULL OR p_id IS NULL OR p_request IS NULL OR p_principal IS NULL OR p_owner < 0
                  OR p_grp < 0 OR p_mode NOT BETWEEN 0 AND {MODE_MAX} THEN '{invalid_argument}' END);
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    SELECT * INTO v_old FROM mantle.meta m
     WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0 AND m.ns = p_ns FOR UPDATE;
    v_new.code := CASE WHEN v_old.id IS NULL THEN '{not_found}' WHEN v_old.id <> p_id THEN '{directory_removed}'
                       WHEN p_explicit IS NOT NULL AND (v_old.explicit IS NULL OR p_pid = 0) THEN '{invalid_argument}' END;
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    v_new.id := v_old.id;
    v_new.version := v_old.version + 1;
    IF NOT mantle.claim(p_principal, p_ns, p_request, p_hash, 'set_attributes', p_pid, v_new.id, v_new.version) THEN
        RETURN mantle.recall(p_principal, p_ns, p_request, p_hash, p_pid);
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
        PERFORM mantle.queue_pruning(p_pid, p_id);
    END IF;
    IF p_pid = 0 AND p_owner IS NOT NULL THEN
        UPDATE mantle.namespaces n SET owner = p_owner WHERE n.ns = v_old.id;
    END IF;
    v_new.replayed := false;
    RETURN v_new;
END $$;
COMMENT ON FUNCTION mantle.set_attributes_one(int, bigint, bigint, text, bigint, int, int, int, jsonb, boolean, uuid, bigint,
    text) IS
    'Changes attributes of one entry of a batch';

-- On Citus, for a session on another node than the one that has the directories: Citus sends the call there, one a
-- directory. A gateway is connected to the right one and never comes here, but for a shard that has just moved.
CREATE FUNCTION mantle.set_attributes_delegated(
    p_at bigint, p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_owner int[], p_grp int[],
    p_mode int[], p_user_metadata jsonb[], p_explicit boolean[], p_request uuid[], p_hash bigint[], p_lease text[])
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET citus.allow_nested_distributed_execution = on AS $$
BEGIN
    -- Else it would be sent on from here, to here.
    PERFORM mantle.fault(mantle.placement_fault(ARRAY[p_at]));
    RETURN QUERY SELECT * FROM mantle.set_attributes(
        p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_user_metadata, p_explicit, p_request, p_hash, p_lease);
END $$;
COMMENT ON FUNCTION mantle.set_attributes_delegated(
    bigint, int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], jsonb[], boolean[], uuid[], bigint[], text[]) IS
    'mantle.set_attributes on the node of p_at, the one directory of all elements';

CREATE FUNCTION mantle.set_attributes_distributed(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_owner int[], p_grp int[],
    p_mode int[], p_user_metadata jsonb[], p_explicit boolean[], p_request uuid[], p_hash bigint[], p_lease text[])
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn) LANGUAGE plpgsql VOLATILE AS $$
DECLARE g record;
BEGIN
    FOR g IN
        SELECT u.pid, array_agg(u.principal ORDER BY u.n) AS principal, array_agg(u.ns ORDER BY u.n) AS ns,
               array_agg(u.name ORDER BY u.n) AS name, array_agg(u.id ORDER BY u.n) AS id,
               array_agg(u.owner ORDER BY u.n) AS owner, array_agg(u.grp ORDER BY u.n) AS grp,
               array_agg(u.mode ORDER BY u.n) AS mode, array_agg(u.user_metadata ORDER BY u.n) AS user_metadata,
               array_agg(u.explicit ORDER BY u.n) AS explicit, array_agg(u.request ORDER BY u.n) AS request,
               array_agg(u.hash ORDER BY u.n) AS hash, array_agg(u.lease ORDER BY u.n) AS lease,
               array_agg(u.n ORDER BY u.n) AS ords, array_agg(u.pid) AS pids
          FROM unnest(p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_user_metadata, p_explicit,
                      p_request, p_hash, p_lease)
               WITH ORDINALITY AS u(principal, ns, pid, name, id, owner, grp, mode, user_metadata, explicit, request, hash,
                                    lease, n)
         GROUP BY u.pid ORDER BY u.pid
    LOOP
        -- Dynamic, with constants: only such a call is one that Citus sends elsewhere.
        RETURN QUERY EXECUTE
            'SELECT ($1)[r.ord]::int, code, id, version, replayed, flush_lsn
               FROM mantle.set_attributes_delegated($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) AS r'
            USING g.ords, g.pid, g.principal, g.ns, g.pids, g.name, g.id, g.owner, g.grp, g.mode, g.user_metadata,
                       g.explicit, g.request, g.hash, g.lease;
    END LOOP;
END $$;
COMMENT ON FUNCTION mantle.set_attributes_distributed(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], jsonb[], boolean[], uuid[], bigint[],
    text[]) IS 'mantle.set_attributes on the nodes of its directories';

CREATE FUNCTION mantle.set_attributes(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_owner int[], p_grp int[], p_mode int[],
    p_user_metadata jsonb[], p_explicit boolean[], p_request uuid[], p_hash bigint[], p_lease text[] DEFAULT NULL)
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_fault text;
    e record;
    o mantle.outcome;
    v_changes mantle.directory_change[] := '{}';
BEGIN
    -- Assigned, not performed: that is an expression, which costs less than a statement.
    v_fault := mantle.batch_fault(cardinality(p_name), ARRAY[
        cardinality(p_principal), cardinality(p_ns), cardinality(p_pid), cardinality(p_id), cardinality(p_owner),
        cardinality(p_grp), cardinality(p_mode), cardinality(p_user_metadata), cardinality(p_explicit),
        cardinality(p_request), cardinality(p_hash),
        coalesce(cardinality(p_lease), cardinality(p_name))]);
    IF v_fault IS NULL AND NOT mantle.is_local(p_pid) THEN
        RETURN QUERY SELECT * FROM mantle.set_attributes_distributed(
            p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_user_metadata, p_explicit, p_request, p_hash,
            p_lease);
        RETURN;
    END IF;
    v_fault := coalesce(v_fault, mantle.latch_batch(p_pid, p_name));
    IF v_fault IS NOT NULL THEN
        PERFORM mantle.fault(v_fault);
    END IF;
    FOR e IN
        SELECT u.*
          FROM unnest(p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_user_metadata, p_explicit, p_request,
                      p_hash, p_lease)
               WITH ORDINALITY AS u(principal, ns, pid, name, id, owner, grp, mode, user_metadata, explicit, request, hash,
                                    lease, n)
         ORDER BY u.pid, u.name COLLATE "C", u.n
    LOOP
        o := mantle.set_attributes_one(e.principal, e.ns, e.pid, e.name, e.id, e.owner, e.grp, e.mode,
                                       e.user_metadata, e.explicit, e.request, e.hash, e.lease);
        IF (o.change).id IS NOT NULL THEN v_changes := v_changes || o.change; END IF;
        ord := e.n; code := o.code; id := o.id; version := o.version;
        replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.finish(0, v_changes, '{}');
    v_fault := mantle.placement_fault(p_pid);
    IF v_fault IS NOT NULL THEN
        PERFORM mantle.fault(v_fault);
    END IF;
END $$;
COMMENT ON FUNCTION mantle.set_attributes(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], jsonb[], boolean[], uuid[], bigint[], text[]) IS
    'Changes owner, group, mode, user metadata, or whether a directory stays when empty (explicit); NULL leaves as it is';
GRANT EXECUTE ON FUNCTION mantle.set_attributes(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], jsonb[], boolean[], uuid[], bigint[],
    text[]) TO mantle_gateway;
