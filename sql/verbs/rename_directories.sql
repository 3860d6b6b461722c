--- gateway: Commits directory renames that the index prepared, in the order given
-- Each is prepared alone; see rename_objects.sql. A call is for one index group, whose epoch is latched with them.
CREATE FUNCTION mantle.rename_directory(
    {rename_directory.signature}, p_proof bytea[] DEFAULT NULL, p_src_parent text[] DEFAULT NULL,
    p_dst_parent text[] DEFAULT NULL)
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE {as_change} AS $$
DECLARE
    r record;
    v_victim bigint;
    v_is_empty boolean;
    v_exclusive bigint[] := '{}';
    v_placements bigint := mantle.placements();
BEGIN
    PERFORM mantle.raise_fault(mantle.batch_fault(cardinality(p_src_name), ARRAY[
        {rename_directory.lengths}, coalesce(cardinality(p_proof), cardinality(p_src_name)),
        coalesce(cardinality(p_src_parent), cardinality(p_src_name)),
        coalesce(cardinality(p_dst_parent), cardinality(p_src_name))]));
    -- As in the single rename, a victim that is not empty needs no latch (P11). A victim that this call may empty
    -- does, because a call that holds other latches must not wait for a stronger one.
    FOR v_victim IN SELECT DISTINCT u.id FROM unnest(p_victim_id) AS u(id) WHERE u.id <> 0 LOOP
        SELECT e INTO v_is_empty FROM mantle.is_empty_delegated(v_victim) AS e;
        IF v_is_empty OR v_victim = ANY (p_src_pid) THEN
            v_exclusive := v_exclusive || v_victim;
        END IF;
    END LOOP;
    PERFORM mantle.latch_rename_batch(p_src_pid, p_src_name, p_dst_pid, p_dst_name, v_exclusive, p_index_group);
    FOR i IN 1..cardinality(p_src_name) LOOP
        SELECT * INTO r FROM mantle.rename_directory(
            {rename_directory.elements}, p_proof[i], p_src_parent[i], p_dst_parent[i]);
        ord := i; code := r.code; id := r.id; version := r.version; replayed := r.replayed; flush_lsn := r.flush_lsn;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.raise_fault(mantle.placements_fault(v_placements));
END $$;
