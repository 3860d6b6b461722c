--- Metadata in place of other metadata; NULL if there is none
-- Names that begin with a colon are not the user's: headers that S3 keeps, tags and checksums. They stay unless they are
-- named too; a null removes one. If only such names are given, the user's stay too.
CREATE FUNCTION mantle.replaced_metadata(p_old jsonb, p_new jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN jsonb_strip_nulls(
    coalesce((SELECT jsonb_object_agg(o.key, o.value) FROM jsonb_each(p_old) AS o
               WHERE o.key LIKE ':%' OR p_new <> '{}'
                     AND NOT EXISTS (SELECT FROM jsonb_object_keys(p_new) AS n WHERE n NOT LIKE ':%')), '{}') || p_new);

--- Changes attributes of one entry of a batch, a directory or an object
-- Its name is latched, as for every mutation that reads an entry. To make a directory implicit takes what its removal
-- takes: it goes with its last entry. p_part_of: `put` of the key of a directory that is there takes what mantle.mkdir takes,
-- too; `tags` takes r on the entry, because the request reads it.
CREATE FUNCTION mantle.set_attributes_one({set_attributes.parameters_of_one}) RETURNS mantle.outcome
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
        mantle.namespace_fault(p_ns), mantle.lease_fault(p_ns, p_lease), mantle.entry_name_fault(p_name),
        CASE WHEN p_pid IS NULL OR p_id IS NULL OR p_request IS NULL OR p_principal IS NULL OR p_owner < 0
                  OR p_grp < 0 OR p_mode NOT BETWEEN 0 AND {MODE_MAX} OR p_part_of NOT IN ('put', 'tags') THEN '{invalid_argument}' END);
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    SELECT * INTO v_old FROM mantle.meta m
     WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0 AND m.ns = p_ns FOR UPDATE;
    v_directory := mantle.permission_of(p_pid, p_parent);
    v_new.code := coalesce(
        -- Without an entry it says no more than whether the directory may be searched.
        mantle.attributes_fault(p_principal, p_caller, v_directory, v_old.owner, v_old.grp, v_old.mode,
                                CASE WHEN v_old.id IS NOT NULL THEN p_owner END,
                                CASE WHEN v_old.id IS NOT NULL THEN p_grp END,
                                CASE WHEN v_old.id IS NOT NULL THEN p_mode END,
                                v_old.id IS NOT NULL AND p_user_metadata IS NOT NULL),
        CASE WHEN v_old.id IS NULL THEN '{not_found}' WHEN v_old.id <> p_id THEN '{directory_removed}'
             WHEN p_explicit IS NOT NULL AND (v_old.explicit IS NULL OR p_pid = 0) THEN '{invalid_argument}'
             WHEN p_explicit IS NOT NULL
                  THEN mantle.removal_fault(p_principal, p_caller, v_directory, v_old.owner)
             WHEN p_part_of = 'put' THEN mantle.creation_fault(p_principal, p_caller, v_directory)
             WHEN p_part_of = 'tags'
                  THEN mantle.reading_fault(p_principal, p_caller, v_directory, v_old.owner, v_old.grp, v_old.mode)
             WHEN p_pid = 0 THEN mantle.root_fault(p_principal, p_caller, v_old.owner, v_old.grp, v_old.mode) END);
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

--- Latches entries, and exclusively the directories among them whose permission is to change
-- Changes of a directory's entries hold its latch shared, so a new permission waits for those that were allowed by the old
-- one, but not for long (P11).
CREATE FUNCTION mantle.latch_attributes(p_pid bigint[], p_name text[], p_exclusive bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM mantle.latch_across_nodes(p_pid, p_name, p_exclusive, NULL);
END $$;

--- mantle.set_attributes_one on the node of the entry, with its message
CREATE FUNCTION mantle.set_attributes_delegated(p_at bigint, {set_attributes.parameters_of_one}) RETURNS mantle.outcome
LANGUAGE plpgsql VOLATILE {delegated} AS $$
DECLARE o mantle.outcome := mantle.set_attributes_one({set_attributes.arguments});
BEGIN
    IF (o.change).id IS NOT NULL THEN
        PERFORM mantle.emit(NULL, 0, ARRAY[o.change]);
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_at]));
    RETURN o;
END $$;

--- gateway: Changes owner, group, mode, metadata, or whether a directory stays when empty; NULL leaves as it is
-- A directory's new permission is written with its entry and, where the changes of its entries are latched, with its
-- attribute record (P56). These may be on two nodes.
CREATE FUNCTION mantle.set_attributes({set_attributes.signature})
RETURNS TABLE (ord int, {set_attributes.answer})
LANGUAGE plpgsql VOLATILE {as_change} AS $$
DECLARE
    v_fault text;
    e record;
    o mantle.outcome;
    -- Citus sends plain variables only.
    c record;
    v_changes mantle.directory_change[] := '{}';
    v_exclusive bigint[] := '{}';
    v_local boolean;
    v_placements bigint := mantle.placements();
BEGIN
    -- An assignment is an expression, which costs less than a PERFORM statement.
    v_fault := mantle.batch_fault(cardinality(p_name), ARRAY[{set_attributes.lengths}]);
    IF v_fault IS NULL THEN
        FOR i IN 1..cardinality(p_name) LOOP
            IF right(p_name[i], 1) = '/'
               AND (num_nonnulls(p_owner[i], p_grp[i], p_mode[i]) > 0
                    -- What removes its last entry looks whether it stays (mantle.queue_pruning).
                    OR NOT p_explicit[i] AND NOT mantle.is_distributed()) THEN
                v_exclusive := v_exclusive || p_id[i];
            END IF;
        END LOOP;
        v_local := mantle.is_local(p_pid || v_exclusive);
        IF v_local AND v_exclusive = '{}' THEN
            v_fault := mantle.latch_batch(p_pid, p_name);
        ELSE
            PERFORM mantle.latch_attributes(p_pid, p_name, v_exclusive);
        END IF;
    END IF;
    IF v_fault IS NOT NULL THEN
        PERFORM mantle.raise_fault(v_fault);
    END IF;
    FOR e
        IN SELECT u.* FROM unnest({set_attributes.arguments}) WITH ORDINALITY AS u({set_attributes.columns}, n)
         ORDER BY u.pid, u.name COLLATE "C", u.n
    LOOP
        IF v_local THEN
            o := mantle.set_attributes_one({set_attributes.columns_of_e});
            IF (o.change).id IS NOT NULL THEN v_changes := v_changes || o.change; END IF;
        ELSE
            SELECT * INTO o FROM mantle.set_attributes_delegated(e.pid, {set_attributes.columns_of_e});
        END IF;
        IF (o.change).id = ANY (v_exclusive) AND num_nonnulls(e.owner, e.grp, e.mode) > 0 THEN
            c := o.change;
            PERFORM FROM mantle.record_permission_delegated(c.id, c.ns, c.owner, c.grp, c.mode);
        END IF;
        ord := e.n; code := o.code; id := o.id; version := o.version;
        replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.count_and_emit(0, v_changes, '{}');
    v_fault := mantle.placements_fault(v_placements);
    IF v_fault IS NOT NULL THEN
        PERFORM mantle.raise_fault(v_fault);
    END IF;
END $$;
