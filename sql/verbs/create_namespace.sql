--- gateway: Makes a namespace and its root, in index group 1 or the given one; {namespace_exists} with number and owner
CREATE FUNCTION mantle.create_namespace(
    p_principal int, p_name text, p_id bigint, p_owner int, p_grp int, p_mode int, p_request uuid, p_hash bigint,
    p_index_group int DEFAULT NULL, p_umask int DEFAULT NULL, OUT code text, OUT ns bigint, OUT owner int,
    OUT replayed boolean, OUT flush_lsn pg_lsn) LANGUAGE plpgsql VOLATILE {as_change} AS $$
#variable_conflict use_column
DECLARE
    v_root mantle.meta;
    v_row text;
    v_changes text;
    o mantle.outcome;
    v_index_group int := coalesce(p_index_group, 1);
    v_umask int := coalesce(p_umask, {UMASK_FIRST});
    v_placements bigint := mantle.placements();
BEGIN
    -- Latches the group's epoch too, so that the group is not dropped (mantle.drop_index_group).
    PERFORM mantle.latch_across_nodes(ARRAY[0::bigint], ARRAY[p_name], '{}', v_index_group);
    SELECT '{namespace_exists}', n.ns, n.owner INTO code, ns, owner FROM mantle.namespaces n WHERE n.name = p_name;
    code := coalesce(
        mantle.namespace_name_fault(p_name), code,
        CASE WHEN (p_owner >= 0 AND p_grp >= 0 AND p_mode BETWEEN 0 AND {MODE_MAX}
                   AND v_umask BETWEEN 0 AND {UMASK_MAX} AND p_request IS NOT NULL AND p_principal IS NOT NULL
                   AND EXISTS (SELECT FROM mantle.index_groups g WHERE g.index_group = v_index_group)) IS NOT TRUE
             THEN '{invalid_argument}' END,
        mantle.id_fault(p_id));
    SELECT * INTO o FROM mantle.record_request_delegated(
        0, p_principal, 0, p_request, p_hash, 'create_namespace', code, p_id, 1);
    code := o.code; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
    IF replayed THEN
        ns := o.id;
        owner := (SELECT n.owner FROM mantle.namespaces n WHERE n.ns = o.id);
    END IF;
    IF code IS NOT NULL OR replayed THEN
        RETURN;
    END IF;
    INSERT INTO mantle.namespaces (ns, name, index_group, owner, umask)
    VALUES (p_id, p_name, v_index_group, p_owner, v_umask);
    v_root.name := p_name || '/'; v_root.ns := p_id; v_root.id := p_id; v_root.version := 1; v_root.explicit := true;
    v_root.owner := p_owner; v_root.grp := p_grp; v_root.mode := p_mode; v_root.created := now();
    v_changes := ARRAY[ROW(false, p_id, 0, v_root.name, p_id, 1, p_owner, p_grp, p_mode,
                           p_principal, p_request)::mantle.directory_change];
    v_row := v_root;
    PERFORM FROM mantle.insert_entry_delegated(0, v_row, NULL, v_changes, 0);
    PERFORM mantle.raise_fault(mantle.placements_fault(v_placements));
    ns := p_id;
    owner := p_owner;
END $$;
