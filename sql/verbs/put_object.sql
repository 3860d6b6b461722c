-- Creates or overwrites objects. The fast path makes new ones (extension/src/verbs/fast_path.rs); this file is the
-- fallback. Both latch pids shared and names exclusively, so what is read of an entry stays true until the commit; and
-- segments of volumes shared, if the bytes are there (P59).

--- Whether a condition of a put holds for the object that is there: `*absent`, `*present`, the etag that it must have, `!`
--- and an etag that it must not have, or NULL for none
CREATE FUNCTION mantle.holds(p_condition text, p_id bigint, p_etag text) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN CASE
    WHEN p_condition = '*absent' THEN p_id IS NULL
    WHEN p_condition = '*present' THEN p_id IS NOT NULL
    WHEN p_condition LIKE '!%' THEN substr(p_condition, 2) IS DISTINCT FROM p_etag
    ELSE p_condition IS NULL OR p_condition IS NOT DISTINCT FROM p_etag END;

--- Creates or overwrites one object of a batch
-- A separate statement reads the old size (P13). Values that no column or index would accept are refused
-- here, so that they do not fail the whole batch.
CREATE FUNCTION mantle.put_object_one({put_object.parameters_of_one}) RETURNS mantle.outcome
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_old mantle.meta;
    v_directory text;
    v_locator text := CASE WHEN p_inline IS NULL THEN p_locator ELSE 'inline:' || p_id END;
    v_new mantle.outcome := mantle.recorded_outcome(p_principal, p_ns, p_request, p_hash, p_pid);
BEGIN
    IF NOT v_new IS NULL THEN
        RETURN v_new;
    END IF;
    v_new.code := coalesce(
        mantle.namespace_fault(p_ns), mantle.lease_fault(p_ns, p_lease), mantle.object_name_fault(p_name),
        CASE WHEN (p_pid >= {ID_MIN} AND p_owner >= 0 AND p_grp >= 0 AND p_mode BETWEEN 0 AND {MODE_MAX}
                   AND p_size BETWEEN 0 AND {OBJECT_BYTES_MAX}
                   AND coalesce(octet_length(p_locator), 0) <= {LOCATOR_BYTES_MAX}
                   AND (p_inline IS NULL OR p_locator IS NULL AND octet_length(p_inline) = p_size
                                            AND p_size BETWEEN 1 AND {INLINE_BYTES_MAX})
                   AND p_request IS NOT NULL AND p_principal IS NOT NULL) IS NOT TRUE THEN '{invalid_argument}' END,
        mantle.id_fault(p_id), mantle.segment_fault(p_locator), mantle.removed_fault(p_pid));
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    SELECT * INTO v_old FROM mantle.meta m WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0 FOR UPDATE;
    v_directory := mantle.permission_of(p_pid, p_parent);
    IF v_old.id IS NULL THEN
        v_new.code := mantle.creation_fault(p_principal, p_caller, v_directory);
    ELSE
        v_new.code := coalesce(
            mantle.replacement_fault(p_principal, p_caller, v_directory, v_old.owner, v_old.grp, v_old.mode),
            mantle.condition_fault(p_principal, p_caller, p_condition, v_old.owner, v_old.grp, v_old.mode));
    END IF;
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    PERFORM FROM mantle.meta m WHERE m.pid = p_pid AND m.name = p_name || '/' AND m.ts = 0;
    IF FOUND AND v_old.id IS NULL THEN
        v_new.code := '{is_directory}';
    ELSIF NOT mantle.holds(p_condition, v_old.id, v_old.etag) THEN
        v_new.code := '{precondition_failed}';
    END IF;
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    v_new.id := coalesce(v_old.id, p_id);
    v_new.version := coalesce(v_old.version, 0) + 1;
    IF NOT mantle.record_request(
        p_principal, p_ns, p_request, p_hash, 'put_object', p_pid, v_new.id, v_new.version) THEN
        RETURN mantle.recorded_outcome(p_principal, p_ns, p_request, p_hash, p_pid);
    END IF;
    IF v_old.id IS NULL THEN
        INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, size, synthetic, etag, content_type,
                                 user_metadata, locator, created, modified)
        VALUES (p_pid, p_name, p_ns, p_id, p_owner, p_grp, p_mode, 1, p_size, false, p_etag, p_content_type,
                p_user_metadata, v_locator, now(), now());
    ELSE
        -- Owner, group and mode stay.
        UPDATE mantle.meta m
           SET version = v_new.version, size = p_size, synthetic = false, etag = p_etag,
               content_type = p_content_type, user_metadata = p_user_metadata, locator = v_locator, shared = NULL,
               modified = now()
         WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0;
        v_new.old_locator := mantle.left_locator(v_old.locator, v_old.shared);
        IF v_old.locator {is_inline} THEN
            PERFORM mantle.drop_inline(p_pid, ARRAY[v_old.locator]);
        ELSIF v_old.locator {in_volume} AND mantle.are_of_one_write(v_old.locator, p_locator) IS NOT TRUE THEN
            PERFORM mantle.free_bytes(ARRAY[v_old.locator], v_old.shared IS TRUE);
        END IF;
    END IF;
    IF p_inline IS NOT NULL THEN
        PERFORM mantle.add_inline(p_pid, v_locator, p_inline);
    END IF;
    v_new.delta := ROW(p_ns, p_pid, (v_old.id IS NULL)::int, 0, p_size - coalesce(v_old.size, 0));
    v_new.replayed := false;
    RETURN v_new;
END $$;

--- Creates or overwrites the objects of a call that the fast path of mantle.put_object did not make (not in p_made)
-- If p_made is NULL, the fast path did not begin: because of p_fault, or without one because the arrays do not fit.
CREATE FUNCTION mantle.put_object_fallback({put_object.parameters}, p_made int[], p_fault text)
RETURNS TABLE (ord int, {put_object.answer})
LANGUAGE plpgsql VOLATILE {as_caller} SET plan_cache_mode = force_generic_plan SET lock_timeout = '2s' AS $$
DECLARE
    e record;
    o mantle.outcome;
    v_deltas mantle.delta[];
    v_manifests text[] := '{}';
BEGIN
    IF p_made IS NULL THEN
        PERFORM mantle.raise_fault(mantle.batch_fault(cardinality(p_name), ARRAY[{put_object.lengths}]));
        IF p_fault <> '{wrong_node}' THEN
            PERFORM mantle.raise_fault(p_fault);
        END IF;
        RETURN QUERY SELECT * FROM mantle.put_object_distributed({put_object.arguments});
        RETURN;
    END IF;
    version := 1; replayed := false;
    FOREACH ord IN ARRAY p_made LOOP
        id := p_id[ord];
        RETURN NEXT;
    END LOOP;
    IF cardinality(p_made) < cardinality(p_name) THEN
        v_deltas := ARRAY(SELECT ROW(u.ns, u.pid, 1, 0, u.size)::mantle.delta
                            FROM unnest(p_ns, p_pid, p_size) WITH ORDINALITY AS u(ns, pid, size, n)
                           WHERE u.n = ANY (p_made));
        FOR e
            IN SELECT u.* FROM unnest({put_object.arguments}) WITH ORDINALITY AS u({put_object.columns}, n)
             WHERE u.n <> ALL (p_made) ORDER BY u.pid, u.name COLLATE "C", u.n
        LOOP
            o := mantle.put_object_one({put_object.columns_of_e});
            IF (o.delta).pid IS NOT NULL THEN v_deltas := v_deltas || o.delta; END IF;
            ord := e.n; code := o.code; id := o.id; version := o.version;
            replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn; old_locator := o.old_locator;
            IF old_locator {is_manifest} AND NOT replayed AND old_locator IS DISTINCT FROM e.locator THEN
                v_manifests := v_manifests || old_locator;
            END IF;
            RETURN NEXT;
        END LOOP;
        PERFORM mantle.count_and_emit(0, '{}', v_deltas);
    END IF;
    IF v_manifests <> '{}' THEN
        PERFORM mantle.free_manifests(v_manifests);
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(p_pid));
END $$;

--- gateway: Creates or overwrites objects. Condition: NULL, *absent (If-None-Match: *), *present (If-Match: *), an etag
--- (If-Match) or ! and an etag (If-None-Match). Bytes in p_inline are kept inside PostgreSQL, without a locator (P62)
CREATE FUNCTION mantle.put_object({put_object.signature}) RETURNS TABLE (ord int, {put_object.answer})
LANGUAGE c VOLATILE {as_owner} AS 'MODULE_PATHNAME', 'mantle_put_object';
