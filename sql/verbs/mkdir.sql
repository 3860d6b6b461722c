-- Makes directories: new ones by a short way (extension/src/verbs/fast_path.rs), all else one by one, as mantle.put_object does.

-- One directory. Latched: pid shared, name exclusive; so what is read here stays until the commit.
CREATE FUNCTION mantle.mkdir_one(
    p_principal int, p_ns bigint, p_pid bigint, p_name text, p_id bigint, p_owner int, p_grp int, p_mode int,
    p_explicit boolean, p_user_metadata jsonb, p_request uuid, p_hash bigint, p_lease text)
RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_old mantle.meta;
    v_object boolean;
    v_new mantle.outcome := mantle.recall(p_principal, p_ns, p_request, p_hash, p_pid);
BEGIN
    IF NOT v_new IS NULL THEN
        RETURN v_new;
    END IF;
    v_new.code := coalesce(
        mantle.namespace_fault(p_ns), mantle.lease_fault(p_ns, p_lease), mantle.directory_name_fault(p_name),
        CASE WHEN (p_pid >= {ID_MIN} AND p_owner >= 0 AND p_grp >= 0 AND p_mode BETWEEN 0 AND {MODE_MAX} AND p_explicit IS NOT NULL
                   AND p_request IS NOT NULL AND p_principal IS NOT NULL) IS NOT TRUE THEN '{invalid_argument}' END,
        mantle.id_fault(p_id), mantle.removed_fault(p_pid));
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    SELECT * INTO v_old FROM mantle.meta m WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0 FOR UPDATE;
    PERFORM FROM mantle.meta m WHERE m.pid = p_pid AND m.name = left(p_name, -1) AND m.ts = 0;
    v_object := FOUND;
    IF v_old.id IS NOT NULL THEN
        v_new.id := v_old.id;
        v_new.version := v_old.version;
        IF v_old.explicit OR NOT p_explicit THEN
            v_new.code := '{already_exists}';
            RETURN v_new;
        END IF;
        v_new.version := v_old.version + 1;
    ELSIF v_object THEN
        v_new.code := '{is_object}';
        RETURN v_new;
    ELSE
        v_new.id := p_id;
        v_new.version := 1;
    END IF;
    IF NOT mantle.claim(p_principal, p_ns, p_request, p_hash, 'mkdir', p_pid, v_new.id, v_new.version) THEN
        RETURN mantle.recall(p_principal, p_ns, p_request, p_hash, p_pid);
    END IF;
    IF v_old.id IS NOT NULL THEN
        -- An implicit directory becomes explicit; its owner and mode stay.
        UPDATE mantle.meta m
           SET explicit = true, version = v_new.version, user_metadata = coalesce(p_user_metadata, m.user_metadata)
         WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0;
        v_new.change := ROW(false, p_ns, p_pid, p_name, v_old.id, v_new.version, v_old.owner, v_old.grp, v_old.mode, p_principal,
                            p_request);
    ELSE
        INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, explicit, user_metadata, created)
        VALUES (p_pid, p_name, p_ns, p_id, p_owner, p_grp, p_mode, 1, p_explicit, p_user_metadata, now());
        v_new.change := ROW(false, p_ns, p_pid, p_name, p_id, 1, p_owner, p_grp, p_mode, p_principal, p_request);
        v_new.delta := ROW(p_ns, p_pid, 1, 1, 0);
        IF NOT p_explicit THEN
            -- For an object that may never come: its PUT can fail after this.
            PERFORM mantle.queue_pruning(p_pid, p_id);
        END IF;
    END IF;
    v_new.replayed := false;
    RETURN v_new;
END $$;
COMMENT ON FUNCTION mantle.mkdir_one(int, bigint, bigint, text, bigint, int, int, int, boolean, jsonb, uuid, bigint, text) IS
    'Makes one directory of a batch';

-- On Citus, for a session on another node than the one that has the directories: Citus sends the call there, one a
-- directory. A gateway is connected to the right one and never comes here, but for a shard that has just moved.
CREATE FUNCTION mantle.mkdir_delegated(
    p_at bigint, p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_owner int[], p_grp int[],
    p_mode int[], p_explicit boolean[], p_user_metadata jsonb[], p_request uuid[], p_hash bigint[], p_lease text[])
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET citus.allow_nested_distributed_execution = on AS $$
BEGIN
    -- Else it would be sent on from here, to here.
    PERFORM mantle.fault(mantle.placement_fault(ARRAY[p_at]));
    RETURN QUERY SELECT * FROM mantle.mkdir(
        p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_explicit, p_user_metadata, p_request, p_hash, p_lease);
END $$;
COMMENT ON FUNCTION mantle.mkdir_delegated(
    bigint, int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], boolean[], jsonb[], uuid[], bigint[], text[]) IS
    'mantle.mkdir on the node of p_at, the one directory of all elements';

CREATE FUNCTION mantle.mkdir_distributed(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_owner int[], p_grp int[],
    p_mode int[], p_explicit boolean[], p_user_metadata jsonb[], p_request uuid[], p_hash bigint[], p_lease text[])
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn) LANGUAGE plpgsql VOLATILE AS $$
DECLARE g record;
BEGIN
    FOR g IN
        SELECT u.pid, array_agg(u.principal ORDER BY u.n) AS principal, array_agg(u.ns ORDER BY u.n) AS ns,
               array_agg(u.name ORDER BY u.n) AS name, array_agg(u.id ORDER BY u.n) AS id,
               array_agg(u.owner ORDER BY u.n) AS owner, array_agg(u.grp ORDER BY u.n) AS grp,
               array_agg(u.mode ORDER BY u.n) AS mode, array_agg(u.explicit ORDER BY u.n) AS explicit,
               array_agg(u.user_metadata ORDER BY u.n) AS user_metadata, array_agg(u.request ORDER BY u.n) AS request,
               array_agg(u.hash ORDER BY u.n) AS hash, array_agg(u.lease ORDER BY u.n) AS lease,
               array_agg(u.n ORDER BY u.n) AS ords, array_agg(u.pid) AS pids
          FROM unnest(p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_explicit, p_user_metadata,
                      p_request, p_hash, p_lease)
               WITH ORDINALITY AS u(principal, ns, pid, name, id, owner, grp, mode, explicit, user_metadata, request, hash,
                                    lease, n)
         GROUP BY u.pid ORDER BY u.pid
    LOOP
        -- Dynamic, with constants: only such a call is one that Citus sends elsewhere.
        RETURN QUERY EXECUTE
            'SELECT ($1)[r.ord]::int, code, id, version, replayed, flush_lsn
               FROM mantle.mkdir_delegated($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) AS r'
            USING g.ords, g.pid, g.principal, g.ns, g.pids, g.name, g.id, g.owner, g.grp, g.mode, g.explicit,
                       g.user_metadata, g.request, g.hash, g.lease;
    END LOOP;
END $$;
COMMENT ON FUNCTION mantle.mkdir_distributed(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], boolean[], jsonb[], uuid[], bigint[],
    text[]) IS 'mantle.mkdir on the nodes of its directories';

-- As mantle.put_object_fallback.
CREATE FUNCTION mantle.mkdir_fallback(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_owner int[], p_grp int[], p_mode int[],
    p_explicit boolean[], p_user_metadata jsonb[], p_request uuid[], p_hash bigint[], p_lease text[], p_made int[], p_fault text)
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    e record;
    o mantle.outcome;
    v_changes mantle.directory_change[];
    v_deltas mantle.delta[];
BEGIN
    IF p_made IS NULL THEN
        PERFORM mantle.fault(mantle.batch_fault(cardinality(p_name), ARRAY[
            cardinality(p_principal), cardinality(p_ns), cardinality(p_pid), cardinality(p_id), cardinality(p_owner),
            cardinality(p_grp), cardinality(p_mode), cardinality(p_explicit), cardinality(p_user_metadata),
            cardinality(p_request), cardinality(p_hash),
            coalesce(cardinality(p_lease), cardinality(p_name))]));
        IF p_fault <> '{wrong_node}' THEN
            PERFORM mantle.fault(p_fault);
        END IF;
        RETURN QUERY SELECT * FROM mantle.mkdir_distributed(
            p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_explicit, p_user_metadata, p_request, p_hash,
            p_lease);
        RETURN;
    END IF;
    version := 1; replayed := false;
    FOREACH ord IN ARRAY p_made LOOP
        id := p_id[ord];
        RETURN NEXT;
    END LOOP;
    IF cardinality(p_made) < cardinality(p_name) THEN
        SELECT coalesce(array_agg(ROW(false, u.ns, u.pid, u.name, u.id, 1, u.owner, u.grp, u.mode, u.principal,
                                      u.request)::mantle.directory_change), '{}'),
               coalesce(array_agg(ROW(u.ns, u.pid, 1, 1, 0)::mantle.delta), '{}')
          INTO v_changes, v_deltas
          FROM unnest(p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_request)
               WITH ORDINALITY AS u(principal, ns, pid, name, id, owner, grp, mode, request, n) WHERE u.n = ANY (p_made);
        FOR e IN
            SELECT u.*
              FROM unnest(p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_explicit, p_user_metadata,
                          p_request, p_hash, p_lease)
                   WITH ORDINALITY AS u(principal, ns, pid, name, id, owner, grp, mode, explicit, user_metadata, request,
                                        hash, lease, n)
             WHERE u.n <> ALL (p_made)
             ORDER BY u.pid, u.name COLLATE "C", u.n
        LOOP
            o := mantle.mkdir_one(e.principal, e.ns, e.pid, e.name, e.id, e.owner, e.grp, e.mode, e.explicit,
                                  e.user_metadata, e.request, e.hash, e.lease);
            IF (o.change).id IS NOT NULL THEN v_changes := v_changes || o.change; END IF;
            IF (o.delta).pid IS NOT NULL THEN v_deltas := v_deltas || o.delta; END IF;
            ord := e.n; code := o.code; id := o.id; version := o.version;
            replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
            RETURN NEXT;
        END LOOP;
        PERFORM mantle.finish(0, v_changes, v_deltas);
    END IF;
    PERFORM mantle.fault(mantle.placement_fault(p_pid));
END $$;
COMMENT ON FUNCTION mantle.mkdir_fallback(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], boolean[], jsonb[], uuid[], bigint[], text[], int[], text) IS
    'Makes those directories of a call that were not made by the short way of mantle.mkdir';

CREATE FUNCTION mantle.mkdir(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_owner int[], p_grp int[], p_mode int[],
    p_explicit boolean[], p_user_metadata jsonb[], p_request uuid[], p_hash bigint[], p_lease text[] DEFAULT NULL)
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn)
LANGUAGE c VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'mantle_mkdir';
COMMENT ON FUNCTION mantle.mkdir(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], boolean[], jsonb[], uuid[], bigint[], text[]) IS
    'Makes directories. Names end in a slash. {already_exists} with the id when one exists; an explicit mkdir of an implicit one succeeds';
GRANT EXECUTE ON FUNCTION mantle.mkdir(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], boolean[], jsonb[], uuid[], bigint[],
    text[]) TO mantle_gateway;
