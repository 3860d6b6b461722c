-- mantle.rename_object for several objects. All places are latched first, in order and bounded. Then the elements run
-- one after the other, so that an element may move what an earlier one has moved.

--- Latches the places of a batch of renames
-- Raises `batch_too_large` before the first latch, because on several nodes mantle.latch_across_nodes latches directory
-- by directory.
CREATE FUNCTION mantle.latch_rename_batch(
    p_src_pid bigint[], p_src_name text[], p_dst_pid bigint[], p_dst_name text[], p_exclusive bigint[],
    p_index_group int) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF (SELECT count(DISTINCT u.pid) FROM unnest(p_src_pid || p_dst_pid || p_exclusive) AS u(pid))
       + (SELECT count(DISTINCT (u.pid, u.name)) FROM unnest(p_src_pid || p_dst_pid, p_src_name || p_dst_name)
           AS u(pid, name)) > {BATCH_LATCHES_MAX} THEN
        PERFORM mantle.raise_fault('{batch_too_large}');
    END IF;
    PERFORM mantle.latch_across_nodes(p_src_pid || p_dst_pid, p_src_name || p_dst_name, p_exclusive, p_index_group);
END $$;

--- gateway: Renames objects, in the order given: one may be moved by several elements
CREATE FUNCTION mantle.rename_object({rename_object.signature})
RETURNS TABLE (ord int, code text, id bigint, replayed boolean, flush_lsn pg_lsn, old_locator text)
LANGUAGE plpgsql VOLATILE {as_change} AS $$
DECLARE
    r record;
    v_placements bigint := mantle.placements();
BEGIN
    PERFORM mantle.raise_fault(mantle.batch_fault(cardinality(p_src_name), ARRAY[{rename_object.lengths}]));
    PERFORM mantle.latch_rename_batch(p_src_pid, p_src_name, p_dst_pid, p_dst_name, '{}', NULL);
    FOR i IN 1..cardinality(p_src_name) LOOP
        SELECT * INTO r FROM mantle.rename_object({rename_object.elements});
        ord := i; code := r.code; id := r.id; replayed := r.replayed; flush_lsn := r.flush_lsn;
        old_locator := r.old_locator;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.raise_fault(mantle.placements_fault(v_placements));
END $$;
