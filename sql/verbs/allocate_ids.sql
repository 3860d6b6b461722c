--- gateway, importer: Allocates a block of up to 2^24 ids; use them only after the commit
-- Every block is above all blocks before it. On a new timeline (after a failover or a restore) blocks that were
-- allocated and then lost may be missing, so this skips further ahead than one block can reach.
CREATE FUNCTION mantle.allocate_ids(p_owner text, p_count bigint, OUT first_id bigint, OUT last_id bigint)
LANGUAGE plpgsql VOLATILE {as_change} AS $$
#variable_conflict use_column
DECLARE
    v_last mantle.id_blocks;
    v_ours mantle.id_blocks;
    v_node int := (mantle.delta_ts_base() >> 48)::int;
    v_timeline int := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
BEGIN
    IF p_owner IS NULL OR p_count IS NULL OR p_count NOT BETWEEN 1 AND {ID_BLOCK_MAX} THEN
        PERFORM mantle.raise_fault('{invalid_argument}');
    END IF;
    PERFORM mantle.raise_fault(mantle.latch_allocation());
    -- The latch covers this node only. Two nodes may compute the same block; the insert decides which of them gets it.
    LOOP
        SELECT * INTO v_last FROM mantle.id_blocks b ORDER BY b.first_id DESC LIMIT 1;
        SELECT * INTO v_ours FROM mantle.id_blocks b WHERE b.node = v_node ORDER BY b.first_id DESC LIMIT 1;
        first_id := CASE WHEN v_last.last_id IS NULL THEN {ID_MIN}
                         WHEN v_ours.timeline <> v_timeline THEN v_last.last_id + 1 + {ID_BLOCK_MAX}
                         ELSE v_last.last_id + 1 END;
        last_id := first_id + p_count - 1;
        INSERT INTO mantle.id_blocks (first_id, last_id, node, timeline, owner)
        VALUES (first_id, last_id, v_node, v_timeline, p_owner) ON CONFLICT DO NOTHING;
        EXIT WHEN FOUND;
    END LOOP;
END $$;
