--- The directories of a namespace that has only implicit ones, and no more than a batch may latch; otherwise NULL
-- Their order does not matter, because all are removed in one transaction.
CREATE FUNCTION mantle.removable_directories(p_root bigint) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE v_all bigint[] := mantle.prunable_directories(p_root, 500);
BEGIN
    RETURN CASE WHEN p_root = ANY (v_all) THEN v_all END;
END $$;

--- gateway: Removes a namespace that has only implicit directories, for its owner or uid 0; {not_empty} otherwise
-- Checks first, then latches every directory exclusively, then checks again: an entry that came in between is content.
CREATE FUNCTION mantle.delete_namespace(
    p_principal int, p_name text, p_request uuid, p_hash bigint, OUT code text, OUT ns bigint, OUT replayed boolean,
    OUT flush_lsn pg_lsn) LANGUAGE plpgsql VOLATILE {as_change} AS $$
#variable_conflict use_column
DECLARE
    o mantle.outcome;
    d mantle.meta;
    v_ns bigint;
    v_index_group int;
    v_all bigint[];
    v_fault text;
    v_row text;
    v_changes text;
    v_placements bigint := mantle.placements();
BEGIN
    PERFORM mantle.raise_fault(mantle.mutation_fault_code());
    SELECT n.ns INTO v_ns FROM mantle.namespaces n WHERE n.name = p_name;
    v_all := mantle.removable_directories(v_ns);
    PERFORM mantle.latch_across_nodes(ARRAY[0::bigint], ARRAY[p_name], coalesce(v_all, '{}'), NULL);
    v_fault := CASE
        WHEN p_request IS NULL OR p_principal IS NULL THEN '{invalid_argument}'
        WHEN v_ns IS NULL OR NOT EXISTS (SELECT FROM mantle.namespaces n WHERE n.ns = v_ns) THEN '{namespace_not_found}'
        WHEN p_principal <> 0 AND p_principal <> (SELECT n.owner FROM mantle.namespaces n WHERE n.ns = v_ns)
             THEN '{access_denied}'
        WHEN v_all IS NULL OR (mantle.removable_directories(v_ns) <@ v_all) IS NOT TRUE THEN '{not_empty}' END;
    SELECT * INTO o FROM mantle.record_request_delegated(
        0, p_principal, 0, p_request, p_hash, 'delete_namespace', v_fault, v_ns, NULL);
    code := o.code; ns := o.id; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
    IF code IS NOT NULL OR replayed THEN
        RETURN;
    END IF;
    ns := v_ns;
    -- Children before their parents.
    FOR i IN REVERSE cardinality(v_all)..1 LOOP
        SELECT * INTO d FROM mantle.meta m WHERE m.id = v_all[i] AND m.explicit IS NOT NULL;
        CONTINUE WHEN d.id IS NULL;
        v_changes := ARRAY[ROW(true, v_ns, d.pid, d.name, d.id, d.version + 1, d.owner, d.grp, d.mode, p_principal,
                               CASE WHEN d.id = v_ns THEN p_request END)::mantle.directory_change];
        v_row := d;
        PERFORM FROM mantle.remove_entry_delegated(d.pid, v_row, v_changes, 0);
        PERFORM FROM mantle.write_tombstone_delegated(d.id, v_ns);
    END LOOP;
    -- The namespace before its group, in the order in which moves lock them.
    DELETE FROM mantle.namespaces n WHERE n.ns = v_ns RETURNING n.index_group INTO v_index_group;
    UPDATE mantle.index_groups g SET changes = g.changes + 1 WHERE g.index_group = v_index_group;
    DELETE FROM mantle.namespace_grants g WHERE g.ns = v_ns;
    PERFORM mantle.raise_fault(mantle.placements_fault(v_placements));
END $$;
