-- Makes directories. The fast path makes new ones (extension/src/verbs/fast_path.rs); this file is the fallback.

--- Makes one directory of a batch
-- The pid is latched shared and the name exclusively, so what is read here stays true until the commit.
CREATE FUNCTION mantle.mkdir_one({mkdir.parameters_of_one}) RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_old mantle.meta;
    v_object boolean;
    v_new mantle.outcome := mantle.recorded_outcome(p_principal, p_ns, p_request, p_hash, p_pid);
BEGIN
    IF NOT v_new IS NULL THEN
        RETURN v_new;
    END IF;
    v_new.code := coalesce(
        mantle.namespace_fault(p_ns), mantle.lease_fault(p_ns, p_lease), mantle.directory_name_fault(p_name),
        CASE WHEN (p_pid >= {ID_MIN} AND p_owner >= 0 AND p_grp >= 0 AND p_mode BETWEEN 0 AND {MODE_MAX}
                   AND p_explicit IS NOT NULL AND p_request IS NOT NULL AND p_principal IS NOT NULL) IS NOT TRUE
             THEN '{invalid_argument}' END,
        mantle.id_fault(p_id), mantle.removed_fault(p_pid),
        mantle.creation_fault(p_principal, p_caller, mantle.permission_of(p_pid, p_parent)));
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
        ELSIF p_user_metadata IS NOT NULL THEN
            v_new.code := mantle.metadata_fault(p_principal, p_caller, v_old.owner, v_old.grp, v_old.mode);
        END IF;
        IF v_new.code IS NOT NULL THEN
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
    IF NOT mantle.record_request(p_principal, p_ns, p_request, p_hash, 'mkdir', p_pid, v_new.id, v_new.version) THEN
        RETURN mantle.recorded_outcome(p_principal, p_ns, p_request, p_hash, p_pid);
    END IF;
    IF v_old.id IS NOT NULL THEN
        -- An implicit directory becomes explicit; its owner and mode stay.
        UPDATE mantle.meta m
           SET explicit = true, version = v_new.version, user_metadata = coalesce(p_user_metadata, m.user_metadata)
         WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0;
        v_new.change := ROW(false, p_ns, p_pid, p_name, v_old.id, v_new.version, v_old.owner, v_old.grp, v_old.mode,
                            p_principal, p_request);
    ELSE
        INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, explicit, user_metadata, created)
        VALUES (p_pid, p_name, p_ns, p_id, p_owner, p_grp, p_mode, 1, p_explicit, p_user_metadata, now());
        v_new.change := ROW(false, p_ns, p_pid, p_name, p_id, 1, p_owner, p_grp, p_mode, p_principal, p_request);
        v_new.delta := ROW(p_ns, p_pid, 1, 1, 0);
        IF NOT p_explicit THEN
            -- Its object may never come, because the PUT can fail after this.
            PERFORM mantle.queue_pruning(p_pid, p_id);
        END IF;
    END IF;
    v_new.replayed := false;
    RETURN v_new;
END $$;

--- Makes the directories of a call that the fast path of mantle.mkdir did not make; see mantle.put_object_fallback
CREATE FUNCTION mantle.mkdir_fallback({mkdir.parameters}, p_made int[], p_fault text)
RETURNS TABLE (ord int, {mkdir.answer})
LANGUAGE plpgsql VOLATILE {as_caller} SET plan_cache_mode = force_generic_plan SET lock_timeout = '2s' AS $$
DECLARE
    e record;
    o mantle.outcome;
    v_changes mantle.directory_change[];
    v_deltas mantle.delta[];
BEGIN
    IF p_made IS NULL THEN
        PERFORM mantle.raise_fault(mantle.batch_fault(cardinality(p_name), ARRAY[{mkdir.lengths}]));
        IF p_fault <> '{wrong_node}' THEN
            PERFORM mantle.raise_fault(p_fault);
        END IF;
        RETURN QUERY SELECT * FROM mantle.mkdir_distributed({mkdir.arguments});
        RETURN;
    END IF;
    version := 1; replayed := false;
    FOREACH ord IN ARRAY p_made LOOP
        id := p_id[ord];
        RETURN NEXT;
    END LOOP;
    IF cardinality(p_made) < cardinality(p_name) THEN
        SELECT coalesce(array_agg(ROW(false, u.ns, u.pid, u.name, u.id, 1, u.owner, u.grp, u.mode, u.principal,
                                      u.request)::mantle.directory_change ORDER BY u.n), '{}'),
               coalesce(array_agg(ROW(u.ns, u.pid, 1, 1, 0)::mantle.delta ORDER BY u.n), '{}')
          INTO v_changes, v_deltas
          FROM unnest(p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_request) WITH ORDINALITY
               AS u(principal, ns, pid, name, id, owner, grp, mode, request, n) WHERE u.n = ANY (p_made);
        FOR e
            IN SELECT u.* FROM unnest({mkdir.arguments}) WITH ORDINALITY AS u({mkdir.columns}, n)
             WHERE u.n <> ALL (p_made) ORDER BY u.pid, u.name COLLATE "C", u.n
        LOOP
            o := mantle.mkdir_one({mkdir.columns_of_e});
            IF (o.change).id IS NOT NULL THEN v_changes := v_changes || o.change; END IF;
            IF (o.delta).pid IS NOT NULL THEN v_deltas := v_deltas || o.delta; END IF;
            ord := e.n; code := o.code; id := o.id; version := o.version;
            replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
            RETURN NEXT;
        END LOOP;
        PERFORM mantle.count_and_emit(0, v_changes, v_deltas);
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(p_pid));
END $$;

--- gateway: Makes directories; an implicit one becomes explicit. Names end in a slash. {already_exists} with the id
CREATE FUNCTION mantle.mkdir({mkdir.signature}) RETURNS TABLE (ord int, {mkdir.answer})
LANGUAGE c VOLATILE {as_owner} AS 'MODULE_PATHNAME', 'mantle_mkdir';
