-- The transaction of a directory rename that the index has prepared: resolved, checked for loops and locked under
-- `p_epoch`, as attempt `p_attempt`. `p_proof` shows that. Order of checks: epoch, proof, attempt, replay, source,
-- destination. All checks come before any write, except the attempt's row (mantle.record_attempt_delegated).
-- The source, the destination, the replaced directory (which must be empty) and the request's record (with the
-- namespace's root) may be on several nodes: see sql/steps/cross_directory.sql.
-- The fast path renames to a free place on one PostgreSQL node (extension/src/verbs/rename_directory.rs), by the same
-- checks and with the same rows; this file is the fallback.

--- Why a directory cannot be renamed: the first fault in order, or NULL
CREATE FUNCTION mantle.rename_directory_fault(
    s mantle.place_state, d mantle.place_state, p_ns bigint, p_src_id bigint, p_dst_pid bigint, p_victim_id bigint,
    p_was_empty boolean, p_is_empty boolean, p_principal int, p_caller text, p_src_parent text, p_dst_parent text)
RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    m mantle.meta := s.entry;
    v_from text := coalesce(s.permission, p_src_parent);
    v_to text := coalesce(d.permission, p_dst_parent);
BEGIN
    RETURN CASE
        WHEN d.removed THEN '{directory_removed}'
        WHEN NOT p_was_empty THEN '{not_empty}'
        WHEN (s.entry).id IS DISTINCT FROM p_src_id OR (s.entry).ns <> p_ns THEN '{source_changed}'
        -- The index has checked the same when it prepared; what was changed since is here (P56). Without a permission the
        -- index is of an older release.
        WHEN v_from IS NOT NULL AND mantle.removal_fault(p_principal, p_caller, v_from, m.owner) IS NOT NULL
             OR v_to IS NOT NULL AND mantle.removal_fault(p_principal, p_caller, v_to, (d.entry).owner) IS NOT NULL
             OR p_dst_pid <> m.pid AND mantle.metadata_fault(p_principal, p_caller, m.owner, m.grp, m.mode) IS NOT NULL
             THEN '{access_denied}'
        WHEN p_dst_pid = p_src_id THEN '{rename_loop}'
        WHEN (d.entry).id IS NOT NULL AND (d.entry).id <> p_victim_id THEN '{already_exists}'
        WHEN (d.entry).id = p_src_id THEN '{already_exists}'
        WHEN d.opposite THEN '{is_object}'
        WHEN NOT p_is_empty THEN '{not_empty}' END;
END $$;

--- Moves a directory's entry, and writes the victim's tombstone, after all checks and the record of the request
CREATE FUNCTION mantle.rename_directory_move(
    p_principal int, p_src mantle.meta, p_dst_pid bigint, p_dst_name text, p_victim mantle.meta, p_attempt bigint,
    p_request uuid) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_new mantle.meta := p_src;
    v_changes mantle.directory_change[] := '{}';
    v_marker text;
    v_spans_nodes boolean := NOT mantle.is_local(ARRAY[p_src.pid, p_dst_pid]);
BEGIN
    v_new.pid := p_dst_pid;
    v_new.name := p_dst_name;
    v_new.version := p_src.version + 1;
    IF p_victim.id IS NOT NULL THEN
        PERFORM FROM mantle.write_tombstone_delegated(p_victim.id, p_victim.ns);
        v_changes := v_changes || ROW(true, p_victim.ns, p_victim.pid, p_victim.name, p_victim.id, p_victim.version + 1,
                                      p_victim.owner, p_victim.grp, p_victim.mode, NULL, NULL)::mantle.directory_change;
    END IF;
    v_changes := v_changes || ROW(
        false, v_new.ns, v_new.pid, v_new.name, v_new.id, v_new.version, v_new.owner, v_new.grp, v_new.mode,
        p_principal, CASE WHEN NOT v_spans_nodes THEN p_request END)::mantle.directory_change;
    IF v_spans_nodes THEN
        v_marker := ARRAY[mantle.part_marker(p_src.ns, p_src.pid, p_principal, p_request)];
        v_changes := v_changes || mantle.part_marker(p_src.ns, p_dst_pid, p_principal, p_request);
    END IF;
    PERFORM mantle.move_entry(
        p_src.pid, p_src::text, v_marker, p_dst_pid, v_new::text, p_victim::text, v_changes::text, p_attempt);
END $$;

--- Commits a rename that the fast path of mantle.rename_directory did not commit, or refuses it
CREATE FUNCTION mantle.rename_directory_fallback(
    {rename_directory.parameters_of_one}, p_proof bytea, p_src_parent text, p_dst_parent text,
    OUT code text, OUT id bigint, OUT version bigint, OUT replayed boolean, OUT flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE {as_caller} AS $$
#variable_conflict use_column
DECLARE
    s mantle.place_state;
    d mantle.place_state;
    o mantle.outcome;
    v_victim bigint := coalesce(p_victim_id, 0);
    v_was_empty boolean := true;
    v_is_empty boolean := true;
    v_fault text;
    v_version bigint;
    v_placements bigint := mantle.placements();
BEGIN
    replayed := false;
    -- Checks the victim without the latch first, and fails fast (P11).
    IF v_victim <> 0 THEN
        SELECT e INTO v_was_empty FROM mantle.is_empty_delegated(v_victim) AS e;
    END IF;
    PERFORM mantle.latch_across_nodes(ARRAY[p_src_pid, p_dst_pid], ARRAY[p_src_name, p_dst_name],
        CASE WHEN v_victim <> 0 AND v_was_empty THEN ARRAY[v_victim] ELSE '{}' END, p_index_group);
    SELECT * INTO s FROM mantle.read_place_delegated(p_src_pid, p_src_name, p_ns, p_index_group);
    SELECT * INTO d FROM mantle.read_place_delegated(p_dst_pid, p_dst_name, p_ns, p_index_group);
    code := coalesce(
        mantle.namespace_fault(p_ns),
        CASE WHEN (p_src_pid >= {ID_MIN} AND p_dst_pid >= {ID_MIN} AND p_victim_id >= 0 AND p_attempt IS NOT NULL
                   AND p_request IS NOT NULL AND p_src_id IS NOT NULL AND p_principal IS NOT NULL) IS NOT TRUE THEN
                       '{invalid_argument}' END,
        mantle.directory_name_fault(p_src_name), mantle.directory_name_fault(p_dst_name),
        CASE WHEN (s.epoch = p_epoch AND d.epoch = p_epoch) IS NOT TRUE THEN '{stale_epoch}' END,
        mantle.prepare_fault(p_proof, {prepared.arguments}));
    IF code IS NOT NULL THEN
        RETURN;
    END IF;
    IF v_victim <> 0 AND v_was_empty THEN
        SELECT e INTO v_is_empty FROM mantle.is_empty_delegated(v_victim) AS e;
    END IF;
    v_fault := coalesce(
        mantle.lease_fault(p_ns, p_lease),
        mantle.rename_directory_fault(s, d, p_ns, p_src_id, p_dst_pid, v_victim, v_was_empty, v_is_empty,
                                     p_principal, p_caller, p_src_parent, p_dst_parent));
    v_version := (s.entry).version + 1;
    SELECT * INTO o FROM mantle.record_attempt_delegated(
        p_ns, p_principal, p_request, p_hash, p_attempt, 'rename_directory', v_fault, p_src_id, v_version);
    code := o.code; id := o.id; version := o.version; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
    IF code IS NULL AND NOT replayed THEN
        id := p_src_id; version := v_version;
        PERFORM mantle.rename_directory_move(
            p_principal, s.entry, p_dst_pid, p_dst_name, d.entry, p_attempt, p_request);
        PERFORM mantle.raise_fault(mantle.placements_fault(v_placements));
    END IF;
END $$;

--- gateway: Commits a directory rename that the index prepared; p_victim_id 0: the destination must be free
-- The permissions of the parents are those with which the index prepared it.
CREATE FUNCTION mantle.rename_directory(
    {rename_directory.signature_of_one}, p_proof bytea DEFAULT NULL, p_src_parent text DEFAULT NULL,
    p_dst_parent text DEFAULT NULL,
    OUT code text, OUT id bigint, OUT version bigint, OUT replayed boolean, OUT flush_lsn pg_lsn)
LANGUAGE c VOLATILE {as_change} AS 'MODULE_PATHNAME', 'mantle_rename_directory';
