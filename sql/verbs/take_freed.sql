--- gateway: Takes freed rows of the node of p_at in segments that a mount has. It returns each locator once, when the
--- delete is durable on every server that may be promoted, and at least p_delay_ms old
-- `p_horizon` is the horizon that the last call for this node returned, NULL in the first call. It has a history, a
-- snapshot, and a WAL position after the commits of all transactions that the snapshot sees. (A mutation's commit is
-- flushed before others see it, so the position of the last flush is such a position.) Once every server that may be
-- promoted has flushed that position, their deletes cannot be undone (P60). A snapshot, and not the oldest transaction
-- that runs: one that stays open anywhere on the server would keep all blocks. Only the gateway that has the segment
-- calls this, and it uses the blocks only after this call's commit.
CREATE FUNCTION mantle.take_freed_delegated(
    p_at bigint, p_volume int, p_mount_epoch bigint, p_horizon text, p_delay_ms bigint, p_limit int, OUT horizon text,
    OUT locators text[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
DECLARE
    v_lineage text := mantle.lineage();
    v_horizon text[] := string_to_array(p_horizon, ' ');
    v_due timestamptz := clock_timestamp() - p_delay_ms * interval '1 millisecond';
    v_durable pg_lsn;
    v_segments int[];
    v_seen pg_snapshot;
BEGIN
    PERFORM mantle.raise_fault(coalesce(
                mantle.mutation_fault_code(),
                CASE WHEN (p_at >= 0 AND p_volume > 0 AND p_mount_epoch > 0 AND p_delay_ms BETWEEN 0 AND {REUSE_DELAY_MAX_MS}
                           AND p_limit BETWEEN 1 AND {SEGMENTS_PER_CALL_MAX}
                           AND coalesce(p_horizon, '0/0 1:1: 0/0') ~
                               '^\d+/\d+ \d{1,19}:\d{1,19}:[\d,]* [0-9A-F]{1,8}/[0-9A-F]{1,8}$')
                          IS NOT TRUE THEN '{invalid_argument}' END));
    locators := '{}';
    IF v_horizon[1] = v_lineage THEN
        SELECT CASE WHEN f.required THEN f.flushed ELSE pg_current_wal_flush_lsn() END INTO v_durable
          FROM mantle.standby_flush() AS f;
        IF (v_horizon[3]::pg_lsn <= v_durable) IS NOT TRUE THEN
            horizon := p_horizon;
            RETURN;
        END IF;
        SELECT array_agg(c.locator ORDER BY c.locator), array_agg(DISTINCT c.segment ORDER BY c.segment)
          INTO locators, v_segments
          FROM (SELECT f.locator, f.segment
                  FROM mantle.freed f JOIN mantle.admitted_segments a ON a.volume = f.volume AND a.segment = f.segment
                 WHERE f.volume = p_volume AND f.shared_by = '0' AND f.freed <= v_due
                   AND pg_visible_in_snapshot(f.xid, v_horizon[2]::pg_snapshot)
                   AND a.mount_epoch = p_mount_epoch AND a.lineage = v_lineage
                 ORDER BY f.freed LIMIT p_limit) AS c;
        PERFORM mantle.raise_fault(mantle.latch_volume_segments(p_volume, v_segments, false));
        WITH gone AS (
            DELETE FROM mantle.freed f USING mantle.admitted_segments a
             WHERE f.locator = ANY (locators) AND f.shared_by = '0' AND a.volume = f.volume AND a.segment = f.segment
               AND a.mount_epoch = p_mount_epoch AND a.lineage = v_lineage
            RETURNING f.locator)
        SELECT coalesce(array_agg(g.locator ORDER BY g.locator), '{}') INTO locators FROM gone AS g;
    END IF;
    v_seen := pg_current_snapshot();
    horizon := format('%s %s %s', v_lineage, v_seen, pg_current_wal_flush_lsn());
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_at]));
END $$;

--- gateway: Those of the given locators of which the node of p_at has freed rows of shared bytes
CREATE FUNCTION mantle.shared_freed_delegated(p_at bigint, p_locators text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
BEGIN
    PERFORM mantle.raise_fault(coalesce(
                mantle.mutation_fault_code(),
                CASE WHEN (cardinality(p_locators) <= {SEGMENTS_PER_CALL_MAX}) IS NOT TRUE THEN '{invalid_argument}' END));
    RETURN ARRAY(SELECT DISTINCT f.locator FROM mantle.freed f
                  WHERE f.locator = ANY (p_locators) AND f.shared_by <> '0' ORDER BY f.locator);
END $$;

--- gateway: Frees shared bytes that no row names any more, as mantle.segment_locators has answered, by their rows on the node of
--- p_at; returns how many locators. They are kept for the delay from now on
-- Only one node may free them. If several have rows, first forget those of the others (mantle.forget_freed_delegated).
CREATE FUNCTION mantle.settle_shared_delegated(
    p_at bigint, p_volume int, p_mount_epoch bigint, p_locators text[]) RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
DECLARE
    v_lineage text := mantle.lineage();
    v_settled text[];
BEGIN
    PERFORM mantle.raise_fault(coalesce(
                mantle.mutation_fault_code(),
                CASE WHEN (p_at >= 0 AND p_volume > 0 AND p_mount_epoch > 0
                           AND cardinality(p_locators) <= {SEGMENTS_PER_CALL_MAX}) IS NOT TRUE THEN '{invalid_argument}' END));
    PERFORM mantle.raise_fault(mantle.latch_segments(p_locators));
    WITH gone AS (
        DELETE FROM mantle.freed f USING mantle.admitted_segments a
         WHERE f.locator = ANY (p_locators) AND f.shared_by <> '0' AND f.volume = p_volume AND a.volume = f.volume
           AND a.segment = f.segment AND a.mount_epoch = p_mount_epoch AND a.lineage = v_lineage
        RETURNING f.locator)
    SELECT coalesce(array_agg(DISTINCT g.locator ORDER BY g.locator), '{}') INTO v_settled FROM gone AS g;
    PERFORM mantle.free_bytes(v_settled);
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_at]));
    RETURN cardinality(v_settled);
END $$;

--- gateway: Removes freed rows on the node of p_at without freeing their blocks; returns how many
-- For rows whose blocks already hold other bytes: after the promotion of an asynchronous standby, rows that were taken
-- may be there again.
CREATE FUNCTION mantle.forget_freed_delegated(p_at bigint, p_volume int, p_mount_epoch bigint, p_locators text[]) RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
DECLARE
    v_lineage text := mantle.lineage();
    v_forgotten int;
BEGIN
    PERFORM mantle.raise_fault(coalesce(
                mantle.mutation_fault_code(),
                CASE WHEN (p_at >= 0 AND p_volume > 0 AND p_mount_epoch > 0
                           AND cardinality(p_locators) <= {SEGMENTS_PER_CALL_MAX}) IS NOT TRUE THEN '{invalid_argument}' END));
    PERFORM mantle.raise_fault(mantle.latch_segments(p_locators));
    DELETE FROM mantle.freed f USING mantle.admitted_segments a
     WHERE f.locator = ANY (p_locators) AND f.volume = p_volume AND a.volume = f.volume AND a.segment = f.segment
       AND a.mount_epoch = p_mount_epoch AND a.lineage = v_lineage;
    GET DIAGNOSTICS v_forgotten = ROW_COUNT;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_at]));
    RETURN v_forgotten;
END $$;
