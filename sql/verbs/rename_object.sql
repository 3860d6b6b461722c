--- gateway: Renames an object within its namespace; with overwrite, replaces one and answers its data locator
-- Its old and new place may be on two nodes: see sql/steps/cross_directory.sql.
CREATE FUNCTION mantle.rename_object(
    {rename_object.signature_of_one},
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
    v_locator text;
    v_takes boolean := true;
    v_inline bytea;
    v_placements bigint := mantle.placements();
BEGIN
    PERFORM mantle.latch_across_nodes(ARRAY[p_src_pid, p_dst_pid], ARRAY[p_src_name, p_dst_name], '{}', NULL);
    SELECT * INTO s FROM mantle.read_place_delegated(p_src_pid, p_src_name, NULL, NULL);
    SELECT * INTO d FROM mantle.read_place_delegated(p_dst_pid, p_dst_name, NULL, NULL);
    v_new := s.entry;
    v_to := coalesce(d.permission, p_dst_parent);
    code := coalesce(
        mantle.namespace_fault(p_ns), mantle.lease_fault(p_ns, p_lease),
        CASE WHEN (p_src_pid >= {ID_MIN} AND p_dst_pid >= {ID_MIN} AND p_overwrite IS NOT NULL AND p_request IS NOT NULL
                   AND p_principal IS NOT NULL) IS NOT TRUE THEN '{invalid_argument}' END,
        CASE WHEN d.removed THEN '{directory_removed}' END,
        mantle.object_name_fault(p_src_name), mantle.object_name_fault(p_dst_name),
        mantle.removal_fault(p_principal, p_caller, coalesce(s.permission, p_src_parent), v_new.owner),
        mantle.removal_fault(p_principal, p_caller, v_to, (d.entry).owner),
        CASE WHEN v_new.id IS NULL OR v_new.ns <> p_ns THEN '{not_found}'
             WHEN d.opposite THEN '{is_directory}'
             WHEN (d.entry).id IS NOT NULL AND NOT p_overwrite THEN '{already_exists}'
             -- It is removed, and its key gets other bytes: the caller needs to be allowed both.
             WHEN (d.entry).id IS NOT NULL AND (d.entry).id <> v_new.id THEN mantle.replacement_fault(
                      p_principal, p_caller, v_to, (d.entry).owner, (d.entry).grp, (d.entry).mode) END);
    SELECT * INTO o FROM mantle.record_request_delegated(
        p_dst_pid, p_principal, p_ns, p_request, p_hash, 'rename_object', code, v_new.id, v_new.version);
    code := o.code; id := coalesce(o.id, v_new.id); replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
    IF code IS NOT NULL OR replayed OR (p_src_pid, p_src_name) = (p_dst_pid, p_dst_name) THEN
        id := CASE WHEN code IS NULL THEN id END;
        RETURN;
    END IF;
    old_locator := mantle.left_locator((d.entry).locator, (d.entry).shared);
    v_new.pid := p_dst_pid;
    v_new.name := p_dst_name;
    IF v_new.locator {is_inline} AND p_src_pid <> p_dst_pid THEN
        v_locator := v_new.locator;
        SELECT b INTO v_inline FROM mantle.inline_delegated(p_src_pid, v_locator, v_takes) AS b;
    END IF;
    PERFORM mantle.move_entry(
                p_src_pid, (s.entry)::text, NULL, p_dst_pid, v_new::text, (d.entry)::text, NULL, 0, v_inline);
    IF old_locator {is_manifest} THEN
        PERFORM mantle.free_manifests(ARRAY[old_locator]);
    END IF;
    PERFORM mantle.raise_fault(mantle.placements_fault(v_placements));
END $$;
