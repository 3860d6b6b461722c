--- gateway: Gives objects of one directory other locators, of the same bytes elsewhere; {source_changed} if an object has another
--- id or locator by now. Bytes in p_inline are kept inside PostgreSQL; then the new locator is `inline:` and a new id (P62)
-- p_lease: for a new locator that names a manifest, from before the manifest was made (mantle.create_manifest_delegated).
-- Nothing else of an object changes. Only its own row names the new bytes, even if others may use the old ones. The old
-- ones are returned, or freed, only if no other row may name them (P52, P60).
CREATE FUNCTION mantle.replace_locators_delegated(
    p_pid bigint, p_name text[], p_id bigint[], p_old text[], p_new text[], p_inline bytea[] DEFAULT NULL,
    p_lease text DEFAULT NULL)
RETURNS TABLE (ord int, code text, old_locator text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
#variable_conflict use_column
DECLARE
    e record;
    v_old mantle.meta;
BEGIN
    PERFORM mantle.raise_fault(mantle.batch_fault(
                cardinality(p_name), ARRAY[cardinality(p_id), cardinality(p_old), cardinality(p_new),
                                            coalesce(cardinality(p_inline), cardinality(p_name))]));
    PERFORM mantle.raise_fault(
                CASE WHEN (p_pid >= {ID_MIN} AND cardinality(p_name) <= {SEGMENTS_PER_CALL_MAX}) IS NOT TRUE
                     THEN '{invalid_argument}' END);
    PERFORM mantle.raise_fault(mantle.latch_batch(array_fill(p_pid, ARRAY[cardinality(p_name)]), p_name));
    PERFORM mantle.raise_fault(mantle.latch_segments(p_new));
    FOR e
        IN SELECT u.* FROM unnest(p_name, p_id, p_old, p_new, p_inline) WITH ORDINALITY
                  AS u(name, id, old, new, bytes, n) ORDER BY u.n
    LOOP
        SELECT * INTO v_old FROM mantle.meta m WHERE m.pid = p_pid AND m.name = e.name AND m.ts = 0 FOR UPDATE;
        ord := e.n; old_locator := NULL;
        code := coalesce(
            CASE WHEN (octet_length(e.new) BETWEEN 1 AND {LOCATOR_BYTES_MAX}) IS NOT TRUE THEN '{invalid_argument}' END,
            CASE WHEN e.bytes IS NULL THEN mantle.segment_fault(e.new)
                 WHEN mantle.inline_id(e.new) IS NULL OR octet_length(e.bytes) NOT BETWEEN 1 AND {INLINE_BYTES_MAX}
                      THEN '{invalid_argument}'
                 ELSE mantle.id_fault(mantle.inline_id(e.new)) END,
            CASE WHEN (v_old.id = e.id AND v_old.explicit IS NULL AND v_old.locator = e.old
                       AND (e.bytes IS NULL OR v_old.size = octet_length(e.bytes))) IS NOT TRUE
                 THEN '{source_changed}' END,
            CASE WHEN p_lease IS NOT NULL THEN mantle.lease_fault(v_old.ns, p_lease) END);
        IF code IS NULL AND e.old <> e.new THEN
            UPDATE mantle.meta m SET locator = e.new, shared = NULL
             WHERE m.pid = p_pid AND m.name = e.name AND m.ts = 0;
            old_locator := mantle.left_locator(e.old, v_old.shared);
            IF e.old {is_inline} THEN
                PERFORM mantle.drop_inline(p_pid, ARRAY[e.old]);
            ELSIF e.old {in_volume} AND NOT mantle.are_of_one_write(e.old, e.new) THEN
                PERFORM mantle.free_bytes(ARRAY[e.old], v_old.shared IS TRUE);
            END IF;
            IF e.bytes IS NOT NULL THEN
                PERFORM mantle.add_inline(p_pid, e.new, e.bytes);
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_pid]));
END $$;
