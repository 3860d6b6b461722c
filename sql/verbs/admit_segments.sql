-- The fence (P59): each node lets rows name new bytes only under the epoch that it admits for their segment.

--- gateway: A partition of each node that has any: call mantle.admit_segments and mantle.take_freed_delegated for each of them
CREATE FUNCTION mantle.volume_nodes() RETURNS SETOF bigint LANGUAGE plpgsql VOLATILE {as_owner} AS $$
BEGIN
    IF mantle.is_distributed() THEN
        RETURN QUERY SELECT * FROM mantle.node_partitions();
    ELSE
        RETURN NEXT 1;
    END IF;
END $$;

--- Admits epochs of segments on the node of p_at, which from then on refuses all other epochs
-- It waits for every change in progress, or prepared, that names bytes of the segments, because each holds the latch shared.
-- An epoch that was admitted in another history of the node is not admitted again (P61).
CREATE FUNCTION mantle.admit_segments_delegated(
    p_at bigint, p_volume int, p_mount_epoch bigint, p_segments int[], p_epochs bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE {delegated} AS $$
DECLARE
    v_lineage text := mantle.lineage();
    v_admitted bigint;
BEGIN
    PERFORM mantle.raise_fault(mantle.latch_volume_segments(p_volume, p_segments, true));
    INSERT INTO mantle.admitted_segments AS a (volume, segment, epoch, mount_epoch, lineage)
    SELECT p_volume, u.segment, u.epoch, p_mount_epoch, v_lineage FROM unnest(p_segments, p_epochs) AS u(segment, epoch)
        ON CONFLICT (volume, segment) DO UPDATE
       SET epoch = excluded.epoch, mount_epoch = excluded.mount_epoch, lineage = excluded.lineage
     WHERE a.epoch < excluded.epoch OR a.epoch = excluded.epoch AND a.lineage = excluded.lineage;
    GET DIAGNOSTICS v_admitted = ROW_COUNT;
    PERFORM mantle.raise_fault(CASE WHEN v_admitted < cardinality(p_segments) THEN '{stale_segment}' END);
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_at]));
END $$;

--- gateway: Lets the node of p_at admit the epochs under which segments are leased to a mount; {stale_segment} if one is not
-- One node a call, so that no node waits for another one that is down. The leases are locked until the node has
-- committed, so that no later lease is admitted first.
CREATE FUNCTION mantle.admit_segments(
    p_at bigint, p_volume int, p_mount_epoch bigint, p_segments int[], p_epochs bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE {as_change} AS $$
DECLARE v mantle.volumes := mantle.mounted(p_volume, p_mount_epoch, false);
BEGIN
    PERFORM mantle.raise_fault(
                CASE WHEN (p_at >= 0 AND cardinality(p_segments) BETWEEN 1 AND {SEGMENTS_PER_CALL_MAX}
                           AND cardinality(p_epochs) = cardinality(p_segments)
                           AND (SELECT count(DISTINCT u) FROM unnest(p_segments) AS u) = cardinality(p_segments))
                          IS NOT TRUE THEN '{invalid_argument}' END);
    PERFORM FROM mantle.segments s
      WHERE s.volume = p_volume AND s.segment = ANY (p_segments) ORDER BY s.segment FOR SHARE;
    PERFORM mantle.raise_fault(
                CASE WHEN EXISTS (
                         SELECT FROM unnest(p_segments, p_epochs) AS u(segment, epoch)
                          WHERE NOT EXISTS (
                                    SELECT FROM mantle.segments s
                                     WHERE s.volume = p_volume AND s.segment = u.segment AND s.epoch = u.epoch
                                       AND s.mount_epoch = p_mount_epoch AND s.lineage = v.lineage))
                     THEN '{stale_segment}' END);
    PERFORM FROM mantle.admit_segments_delegated(p_at, p_volume, p_mount_epoch, p_segments, p_epochs);
END $$;
