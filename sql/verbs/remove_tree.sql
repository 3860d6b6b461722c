-- Removes a directory with everything below it, in one transaction of constant cost. Like a rename, it moves the
-- directory into the trash (pid 1, named by its id), to which no path leads. There the worker empties it
-- (sql/admin/empty_trash.sql). It is fenced like a rename: the index has prepared it under `p_epoch` as attempt
-- `p_attempt`, and refuses while a rename holds a lock below the directory. So no rename moves a directory out of the
-- trash or into it.

--- Records the operation that empties a removed tree
CREATE FUNCTION mantle.begin_operation_delegated(
    p_pid bigint, p_id uuid, p_ns bigint, p_principal int, p_directory_id bigint) RETURNS void
LANGUAGE plpgsql VOLATILE {delegated} AS $$
BEGIN
    INSERT INTO mantle.operations (pid, id, ns, principal, kind, directory_id)
    VALUES (p_pid, p_id, p_ns, p_principal, 'remove_tree', p_directory_id);
END $$;

--- gateway: Moves a directory with everything below it into the trash, and begins the operation that empties it
-- The order of checks and the attempt's row are as in mantle.rename_directory.
CREATE FUNCTION mantle.remove_tree(
    p_principal int, p_ns bigint, p_src_pid bigint, p_src_name text, p_src_id bigint, p_index_group int, p_epoch bigint,
    p_attempt bigint, p_request uuid, p_hash bigint, p_operation uuid, p_lease text DEFAULT NULL,
    p_caller text DEFAULT NULL, p_proof bytea DEFAULT NULL, p_src_parent text DEFAULT NULL,
    OUT code text, OUT id bigint, OUT version bigint, OUT replayed boolean, OUT flush_lsn pg_lsn) LANGUAGE plpgsql VOLATILE {as_change} AS $$
#variable_conflict use_column
DECLARE
    s mantle.place_state;
    o mantle.outcome;
    v_dir mantle.meta;
    v_from text;
    v_fault text;
    v_row text;
    v_changes mantle.directory_change[];
    v_emitted text;
    v_placements bigint := mantle.placements();
    v_spans_nodes boolean := NOT mantle.is_local(ARRAY[p_src_pid, 1]);
BEGIN
    replayed := false;
    PERFORM mantle.latch_across_nodes(ARRAY[p_src_pid], ARRAY[p_src_name], '{}', p_index_group);
    SELECT * INTO s FROM mantle.read_place_delegated(p_src_pid, p_src_name, p_ns, p_index_group);
    code := coalesce(
        mantle.namespace_fault(p_ns),
        CASE WHEN (p_src_pid >= {ID_MIN} AND p_src_id IS NOT NULL AND p_attempt IS NOT NULL AND p_request IS NOT NULL
                   AND p_operation IS NOT NULL AND p_principal IS NOT NULL) IS NOT TRUE THEN '{invalid_argument}' END,
        mantle.directory_name_fault(p_src_name),
        CASE WHEN (s.epoch = p_epoch) IS NOT TRUE THEN '{stale_epoch}' END,
        mantle.prepare_fault(p_proof, p_index_group, p_epoch, p_attempt, p_principal, p_ns, p_request, p_src_pid,
                             p_src_name, p_src_id, 1, '', 0));
    IF code IS NOT NULL THEN
        RETURN;
    END IF;
    v_from := coalesce(s.permission, p_src_parent);
    v_dir := s.entry;
    v_dir.pid := 1;
    v_dir.name := v_dir.id || '/';
    v_dir.version := v_dir.version + 1;
    v_fault := coalesce(
        mantle.lease_fault(p_ns, p_lease),
        CASE WHEN v_dir.id IS DISTINCT FROM p_src_id OR v_dir.ns <> p_ns THEN '{source_changed}'
             -- As in mantle.rename_directory_fault.
             WHEN v_from IS NOT NULL THEN mantle.removal_fault(p_principal, p_caller, v_from, v_dir.owner) END);
    SELECT * INTO o FROM mantle.record_attempt_delegated(
        p_ns, p_principal, p_request, p_hash, p_attempt, 'remove_tree', v_fault, v_dir.id, v_dir.version);
    code := o.code; id := o.id; version := o.version; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
    IF code IS NULL AND NOT replayed THEN
        id := v_dir.id; version := v_dir.version;
        v_changes := ARRAY[ROW(false, p_ns, 1, v_dir.name, v_dir.id, v_dir.version, v_dir.owner, v_dir.grp, v_dir.mode,
                               p_principal, CASE WHEN NOT v_spans_nodes THEN p_request END)::mantle.directory_change];
        IF v_spans_nodes THEN
            v_emitted := ARRAY[mantle.part_marker(p_ns, p_src_pid, p_principal, p_request)];
            v_changes := v_changes || mantle.part_marker(p_ns, 1, p_principal, p_request);
        END IF;
        v_row := s.entry;
        PERFORM FROM mantle.remove_entry_delegated(p_src_pid, v_row, v_emitted, p_attempt);
        v_row := v_dir;
        v_emitted := v_changes;
        PERFORM FROM mantle.insert_entry_delegated(1, v_row, NULL, v_emitted, p_attempt);
        PERFORM FROM mantle.begin_operation_delegated(1, p_operation, p_ns, p_principal, v_dir.id);
        PERFORM mantle.raise_fault(mantle.placements_fault(v_placements));
    END IF;
END $$;
