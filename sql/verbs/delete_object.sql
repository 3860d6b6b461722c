--- Deletes one object of a batch
CREATE FUNCTION mantle.delete_object_one({delete_object.parameters_of_one}) RETURNS mantle.outcome
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_old mantle.meta;
    v_directory text;
    v_new mantle.outcome := mantle.recorded_outcome(p_principal, p_ns, p_request, p_hash, p_pid);
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
    v_directory := mantle.permission_of(p_pid, p_parent);
    v_new.code := coalesce(
        mantle.removal_fault(p_principal, p_caller, v_directory, v_old.owner),
        CASE WHEN v_old.id IS NULL THEN '{not_found}'
             WHEN v_old.id <> p_id OR v_old.version <> p_version THEN '{precondition_failed}' END);
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    IF NOT mantle.record_request(
        p_principal, p_ns, p_request, p_hash, 'delete_object', p_pid, v_old.id, v_old.version) THEN
        RETURN mantle.recorded_outcome(p_principal, p_ns, p_request, p_hash, p_pid);
    END IF;
    DELETE FROM mantle.meta m WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0;
    v_new.id := v_old.id;
    v_new.old_locator := mantle.left_locator(v_old.locator, v_old.shared);
    IF v_old.locator {is_inline} THEN
        PERFORM mantle.drop_inline(p_pid, ARRAY[v_old.locator]);
    ELSIF v_old.locator {in_volume} THEN
        PERFORM mantle.free_bytes(ARRAY[v_old.locator], v_old.shared IS TRUE);
    END IF;
    v_new.delta := ROW(p_ns, p_pid, -1, 0, -v_old.size);
    v_new.replayed := false;
    RETURN v_new;
END $$;

--- gateway: Deletes objects; answers the data locator that is no longer used. {precondition_failed} if an object has another
--- id or version than given
CREATE FUNCTION mantle.delete_object({delete_object.signature})
RETURNS TABLE (ord int, {delete_object.answer})
LANGUAGE plpgsql VOLATILE {as_change} SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_fault text;
    e record;
    o mantle.outcome;
    v_deltas mantle.delta[] := '{}';
    v_manifests text[] := '{}';
BEGIN
    -- An assignment is an expression, which costs less than a PERFORM statement.
    v_fault := mantle.batch_fault(cardinality(p_name), ARRAY[{delete_object.lengths}]);
    IF v_fault IS NULL AND NOT mantle.is_local(p_pid) THEN
        RETURN QUERY SELECT * FROM mantle.delete_object_distributed({delete_object.arguments});
        RETURN;
    END IF;
    v_fault := coalesce(v_fault, mantle.latch_batch(p_pid, p_name));
    IF v_fault IS NOT NULL THEN
        PERFORM mantle.raise_fault(v_fault);
    END IF;
    FOR e
        IN SELECT u.* FROM unnest({delete_object.arguments}) WITH ORDINALITY AS u({delete_object.columns}, n)
         ORDER BY u.pid, u.name COLLATE "C", u.n
    LOOP
        o := mantle.delete_object_one({delete_object.columns_of_e});
        IF (o.delta).pid IS NOT NULL THEN v_deltas := v_deltas || o.delta; END IF;
        ord := e.n; code := o.code; id := o.id; replayed := coalesce(o.replayed, false);
        flush_lsn := o.flush_lsn; old_locator := o.old_locator;
        IF old_locator {is_manifest} AND NOT replayed THEN v_manifests := v_manifests || old_locator; END IF;
        RETURN NEXT;
    END LOOP;
    -- Whether to prune a directory is decided later (P17).
    PERFORM mantle.queue_pruning(d.pid, d.pid) FROM (SELECT DISTINCT u.pid FROM unnest(v_deltas) AS u) AS d;
    PERFORM mantle.count_and_emit(0, '{}', v_deltas);
    IF v_manifests <> '{}' THEN
        PERFORM mantle.free_manifests(v_manifests);
    END IF;
    v_fault := mantle.placement_fault(p_pid);
    IF v_fault IS NOT NULL THEN
        PERFORM mantle.raise_fault(v_fault);
    END IF;
END $$;
