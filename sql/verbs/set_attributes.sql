--- Metadata in place of other metadata; NULL if there is none
-- Names that begin with a colon are not the user's: headers that S3 keeps, tags and checksums. They stay unless they are
-- named too; a null removes one. If only such names are given, the user's stay too.
CREATE FUNCTION mantle.replaced_metadata(p_old jsonb, p_new jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN jsonb_strip_nulls(
    coalesce((SELECT jsonb_object_agg(o.key, o.value) FROM jsonb_each(p_old) AS o
               WHERE o.key LIKE ':%' OR p_new <> '{}'
                     AND NOT EXISTS (SELECT FROM jsonb_object_keys(p_new) AS n WHERE n NOT LIKE ':%')), '{}') || p_new);

--- Changes attributes of one entry of a batch, a directory or an object
-- Its name is latched, as for every mutation that reads an entry.
CREATE FUNCTION mantle.set_attributes_one({set_attributes.parameters_of_one}) RETURNS mantle.outcome
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_old mantle.meta;
    v_new mantle.outcome := mantle.recorded_outcome(p_principal, p_ns, p_request, p_hash, p_pid);
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
                       WHEN p_explicit IS NOT NULL AND (v_old.explicit IS NULL OR p_pid = 0)
                       THEN '{invalid_argument}' END;
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    v_new.id := v_old.id;
    v_new.version := v_old.version + 1;
    IF NOT mantle.record_request(
        p_principal, p_ns, p_request, p_hash, 'set_attributes', p_pid, v_new.id, v_new.version) THEN
        RETURN mantle.recorded_outcome(p_principal, p_ns, p_request, p_hash, p_pid);
    END IF;
    UPDATE mantle.meta m
       SET owner = coalesce(p_owner, m.owner), grp = coalesce(p_grp, m.grp), mode = coalesce(p_mode, m.mode),
           user_metadata = coalesce(mantle.replaced_metadata(m.user_metadata, p_user_metadata), m.user_metadata),
           explicit = coalesce(p_explicit, m.explicit),
           version = v_new.version
     WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0
    RETURNING m.* INTO v_old;
    IF v_old.explicit IS NOT NULL THEN
        v_new.change := ROW(false, p_ns, p_pid, p_name, v_old.id, v_new.version, v_old.owner, v_old.grp, v_old.mode,
                            p_principal, p_request);
    END IF;
    IF NOT p_explicit THEN
        -- Its last entry may be gone already.
        PERFORM mantle.queue_pruning(p_pid, p_id);
    END IF;
    IF p_pid = 0 AND p_owner IS NOT NULL THEN
        UPDATE mantle.namespaces n SET owner = p_owner WHERE n.ns = v_old.id;
    END IF;
    v_new.replayed := false;
    RETURN v_new;
END $$;

--- gateway: Changes owner, group, mode, metadata, or whether a directory stays when empty; NULL leaves as it is
CREATE FUNCTION mantle.set_attributes({set_attributes.parameters} DEFAULT NULL)
RETURNS TABLE (ord int, {set_attributes.answer})
LANGUAGE plpgsql VOLATILE {as_owner} SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_fault text;
    e record;
    o mantle.outcome;
    v_changes mantle.directory_change[] := '{}';
BEGIN
    -- An assignment is an expression, which costs less than a PERFORM statement.
    v_fault := mantle.batch_fault(cardinality(p_name), ARRAY[{set_attributes.lengths}]);
    IF v_fault IS NULL AND NOT mantle.is_local(p_pid) THEN
        RETURN QUERY SELECT * FROM mantle.set_attributes_distributed({set_attributes.arguments});
        RETURN;
    END IF;
    v_fault := coalesce(v_fault, mantle.latch_batch(p_pid, p_name));
    IF v_fault IS NOT NULL THEN
        PERFORM mantle.raise_fault(v_fault);
    END IF;
    FOR e
        IN SELECT u.* FROM unnest({set_attributes.arguments}) WITH ORDINALITY AS u({set_attributes.columns}, n)
         ORDER BY u.pid, u.name COLLATE "C", u.n
    LOOP
        o := mantle.set_attributes_one({set_attributes.columns_of_e});
        IF (o.change).id IS NOT NULL THEN v_changes := v_changes || o.change; END IF;
        ord := e.n; code := o.code; id := o.id; version := o.version;
        replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.count_and_emit(0, v_changes, '{}');
    v_fault := mantle.placement_fault(p_pid);
    IF v_fault IS NOT NULL THEN
        PERFORM mantle.raise_fault(v_fault);
    END IF;
END $$;
