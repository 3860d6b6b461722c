--- gateway: Makes an object of the bytes of another one, which may be in another namespace: no byte is copied
-- `p_src_id`, `p_src_version`: the object that the caller has read, or {source_changed}. Both places stay latched until
-- the commit: a change of the source comes before or after the copy, so some object names the bytes at every moment,
-- and no sweeper removes them (P52). Only bytes inside PostgreSQL are copied: each row has its own (P62). Metadata are the
-- caller's, size, etag and bytes the source's. Owner, group and mode are those of the object that it replaces; of a new one
-- the caller's.
CREATE FUNCTION mantle.copy_object(
    p_principal int, p_src_ns bigint, p_src_pid bigint, p_src_name text, p_src_id bigint, p_src_version bigint,
    p_ns bigint, p_dst_pid bigint, p_dst_name text, p_id bigint, p_owner int, p_grp int, p_mode int,
    p_content_type text, p_user_metadata jsonb, p_condition text, p_request uuid, p_hash bigint,
    p_lease text DEFAULT NULL, p_caller text DEFAULT NULL, p_dst_parent text DEFAULT NULL,
    p_src_parent text DEFAULT NULL,
    OUT code text, OUT id bigint, OUT replayed boolean, OUT flush_lsn pg_lsn, OUT old_locator text)
LANGUAGE plpgsql VOLATILE {as_change} AS $$
#variable_conflict use_column
DECLARE
    s mantle.place_state;
    d mantle.place_state;
    o mantle.outcome;
    v_new mantle.meta;
    v_to text;
    -- Citus sends plain variables only.
    v_row text;
    v_replaced text;
    v_changes text;
    v_attempt bigint := 0;
    -- Citus sends plain variables only.
    v_locator text;
    v_takes boolean := false;
    v_inline bytea;
    v_is_itself boolean := (p_src_pid, p_src_name) = (p_dst_pid, p_dst_name);
    v_placements bigint := mantle.placements();
BEGIN
    PERFORM mantle.latch_across_nodes(ARRAY[p_src_pid, p_dst_pid], ARRAY[p_src_name, p_dst_name], '{}', NULL);
    SELECT * INTO s FROM mantle.read_place_delegated(p_src_pid, p_src_name, NULL, NULL);
    SELECT * INTO d FROM mantle.read_place_delegated(p_dst_pid, p_dst_name, NULL, NULL);
    v_new := s.entry;
    v_to := coalesce(d.permission, p_dst_parent);
    code := coalesce(
        mantle.namespace_fault(p_ns), mantle.namespace_fault(p_src_ns), mantle.lease_fault(p_ns, p_lease),
        CASE WHEN (p_src_pid >= {ID_MIN} AND p_dst_pid >= {ID_MIN} AND p_owner >= 0 AND p_grp >= 0
                   AND p_mode BETWEEN 0 AND {MODE_MAX} AND p_src_id IS NOT NULL AND p_src_version IS NOT NULL
                   AND p_request IS NOT NULL AND p_principal IS NOT NULL) IS NOT TRUE THEN '{invalid_argument}' END,
        CASE WHEN d.removed THEN '{directory_removed}' END,
        mantle.object_name_fault(p_src_name), mantle.object_name_fault(p_dst_name), mantle.id_fault(p_id),
        mantle.reading_fault(
            p_principal, p_caller, coalesce(s.permission, p_src_parent), v_new.owner, v_new.grp, v_new.mode),
        CASE WHEN v_new.id IS NULL OR v_new.ns <> p_src_ns THEN '{not_found}'
             WHEN (v_new.id, v_new.version) <> (p_src_id, p_src_version) THEN '{source_changed}'
             WHEN v_new.locator IS NULL THEN '{no_data}' END,
        CASE WHEN (d.entry).id IS NULL THEN mantle.creation_fault(p_principal, p_caller, v_to)
             ELSE coalesce(
                 mantle.replacement_fault(
                     p_principal, p_caller, v_to, (d.entry).owner, (d.entry).grp, (d.entry).mode),
                 mantle.condition_fault(
                     p_principal, p_caller, p_condition, (d.entry).owner, (d.entry).grp, (d.entry).mode)) END,
        CASE WHEN d.opposite THEN '{is_directory}'
             WHEN NOT mantle.holds(p_condition, (d.entry).id, (d.entry).etag) THEN '{precondition_failed}' END);
    v_new.id := coalesce((d.entry).id, p_id);
    v_new.version := coalesce((d.entry).version, 0) + 1;
    SELECT * INTO o FROM mantle.record_request_delegated(
        p_dst_pid, p_principal, p_ns, p_request, p_hash, 'copy_object', code, v_new.id, v_new.version);
    code := o.code; id := coalesce(o.id, v_new.id); replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
    IF code IS NOT NULL OR replayed THEN
        id := CASE WHEN code IS NULL THEN id END;
        RETURN;
    END IF;
    IF NOT v_is_itself THEN
        old_locator := mantle.left_locator((d.entry).locator, (d.entry).shared);
        IF v_new.locator {is_inline} THEN
            v_locator := v_new.locator;
            SELECT b INTO v_inline FROM mantle.inline_delegated(p_src_pid, v_locator, v_takes) AS b;
            PERFORM mantle.raise_fault(CASE WHEN v_inline IS NULL THEN '{bytes_missing}' END);
            v_new.locator := 'inline:' || p_id;
        ELSE
            IF v_new.shared IS NOT TRUE THEN
                PERFORM FROM mantle.share_object_delegated(p_src_pid, p_src_name);
            END IF;
            v_new.shared := true;
        END IF;
    END IF;
    v_new.ns := p_ns; v_new.pid := p_dst_pid; v_new.name := p_dst_name;
    v_new.owner := coalesce((d.entry).owner, p_owner);
    v_new.grp := coalesce((d.entry).grp, p_grp);
    v_new.mode := coalesce((d.entry).mode, p_mode & ~(SELECT n.umask FROM mantle.namespaces n WHERE n.ns = p_ns));
    v_new.content_type := p_content_type; v_new.user_metadata := p_user_metadata;
    v_new.created := coalesce((d.entry).created, now()); v_new.modified := now();
    v_row := v_new::text; v_replaced := (d.entry)::text;
    PERFORM FROM mantle.insert_entry_delegated(p_dst_pid, v_row, v_replaced, v_changes, v_attempt, v_inline);
    IF old_locator {is_manifest} THEN
        PERFORM mantle.free_manifests(ARRAY[old_locator]);
    END IF;
    PERFORM mantle.raise_fault(mantle.placements_fault(v_placements));
END $$;
