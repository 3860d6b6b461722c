--- gateway: Gives objects of one directory other locators, of the same bytes elsewhere; {source_changed} if an object has another
--- id or locator by now
-- Nothing else of an object changes. Only its own row names the new bytes, even if others may use the old ones. The old
-- ones are returned, or freed, only if no other row may name them (P52, P60).
CREATE FUNCTION mantle.replace_locators_delegated(
    p_pid bigint, p_name text[], p_id bigint[], p_old text[], p_new text[])
RETURNS TABLE (ord int, code text, old_locator text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
#variable_conflict use_column
DECLARE
    e record;
    v_old mantle.meta;
BEGIN
    PERFORM mantle.raise_fault(mantle.batch_fault(
                cardinality(p_name), ARRAY[cardinality(p_id), cardinality(p_old), cardinality(p_new)]));
    PERFORM mantle.raise_fault(
                CASE WHEN (p_pid >= {ID_MIN} AND cardinality(p_name) <= {SEGMENTS_PER_CALL_MAX}) IS NOT TRUE
                     THEN '{invalid_argument}' END);
    PERFORM mantle.raise_fault(mantle.latch_batch(array_fill(p_pid, ARRAY[cardinality(p_name)]), p_name));
    PERFORM mantle.raise_fault(mantle.latch_segments(p_new));
    FOR e
        IN SELECT u.* FROM unnest(p_name, p_id, p_old, p_new) WITH ORDINALITY AS u(name, id, old, new, n) ORDER BY u.n
    LOOP
        SELECT * INTO v_old FROM mantle.meta m WHERE m.pid = p_pid AND m.name = e.name AND m.ts = 0 FOR UPDATE;
        ord := e.n; old_locator := NULL;
        code := coalesce(
            CASE WHEN (octet_length(e.new) BETWEEN 1 AND {LOCATOR_BYTES_MAX}) IS NOT TRUE THEN '{invalid_argument}' END,
            mantle.segment_fault(e.new),
            CASE WHEN (v_old.id = e.id AND v_old.explicit IS NULL AND v_old.locator = e.old) IS NOT TRUE
                 THEN '{source_changed}' END);
        IF code IS NULL AND e.old <> e.new THEN
            UPDATE mantle.meta m SET locator = e.new, shared = NULL
             WHERE m.pid = p_pid AND m.name = e.name AND m.ts = 0;
            old_locator := mantle.left_locator(e.old, v_old.shared);
            IF mantle.are_freed(e.old, v_old.shared) AND NOT mantle.are_of_one_write(e.old, e.new) THEN
                PERFORM mantle.free_bytes(ARRAY[e.old]);
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_pid]));
END $$;
