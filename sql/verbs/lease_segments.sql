-- Leases of segments. A lease belongs to a mount of the volume. Another mount is recorded only after the process of the
-- first one has released the volume's lock. A lease ends when it is released or taken over, or when the history of the
-- coordinator in which it was given ends. A node lets a row name bytes of the segment only after it has admitted the
-- lease's epoch (sql/verbs/admit_segments.sql).

--- The lowest epoch of a lease that is given now. Each timeline has 2^20 epochs of its own, so none is given again after
--- a restore
CREATE FUNCTION mantle.least_segment_epoch() RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN split_part(mantle.lineage(), '/', 2)::bigint << 20;
END $$;

--- gateway: Leases up to p_count free segments of a volume, first those that were never used. `was_used`: rows may name
--- bytes there, so read their locators (mantle.segment_locators) before you write
-- With p_unused_only it leases only segments that were never used. It leases none if the volume is not active.
CREATE FUNCTION mantle.lease_segments(p_volume int, p_mount_epoch bigint, p_count int, p_unused_only boolean)
RETURNS TABLE (segment int, epoch bigint, was_used boolean)
LANGUAGE plpgsql VOLATILE {as_change} AS $$
#variable_conflict use_column
DECLARE
    v mantle.volumes := mantle.mounted(p_volume, p_mount_epoch, true);
    v_epoch bigint := mantle.least_segment_epoch();
    v_found bigint;
BEGIN
    PERFORM mantle.raise_fault(
                CASE WHEN (p_count BETWEEN 1 AND {SEGMENTS_PER_CALL_MAX} AND p_unused_only IS NOT NULL) IS NOT TRUE
                     THEN '{invalid_argument}' END);
    IF v.state <> 'active' THEN
        RETURN;
    END IF;
    RETURN QUERY
    INSERT INTO mantle.segments AS s (volume, segment, epoch, mount_epoch, owner, lineage)
    SELECT p_volume, n, v_epoch, p_mount_epoch, v.mounted_by, v.lineage FROM generate_series(0, v.segments - 1) AS n
     WHERE NOT EXISTS (SELECT FROM mantle.segments o WHERE o.volume = p_volume AND o.segment = n)
     ORDER BY n LIMIT p_count
    RETURNING s.segment, s.epoch, false;
    GET DIAGNOSTICS v_found = ROW_COUNT;
    IF p_unused_only THEN
        RETURN;
    END IF;
    RETURN QUERY
    UPDATE mantle.segments s
       SET epoch = greatest(s.epoch + 1, v_epoch), mount_epoch = p_mount_epoch, owner = v.mounted_by, lineage = v.lineage
     WHERE s.volume = p_volume AND s.segment IN (
               SELECT o.segment FROM mantle.segments o WHERE o.volume = p_volume AND o.mount_epoch IS NULL
                ORDER BY o.segment LIMIT p_count - v_found)
    RETURNING s.segment, s.epoch, true;
END $$;

--- gateway: Takes segments over from the gateways that have them, under new epochs; with NULL all leased segments
-- Rows may name bytes there, so read their locators (mantle.segment_locators) before you write.
CREATE FUNCTION mantle.take_over_segments(p_volume int, p_mount_epoch bigint, p_segments int[])
RETURNS TABLE (segment int, epoch bigint) LANGUAGE plpgsql VOLATILE {as_change} AS $$
#variable_conflict use_column
DECLARE
    v mantle.volumes := mantle.mounted(p_volume, p_mount_epoch, true);
    v_epoch bigint := mantle.least_segment_epoch();
BEGIN
    RETURN QUERY
    UPDATE mantle.segments s
       SET epoch = greatest(s.epoch + 1, v_epoch), mount_epoch = p_mount_epoch, owner = v.mounted_by, lineage = v.lineage
     WHERE s.volume = p_volume AND CASE WHEN p_segments IS NULL THEN s.mount_epoch IS NOT NULL
                                        ELSE s.segment = ANY (p_segments) END
    RETURNING s.segment, s.epoch;
END $$;

--- gateway: Releases segments, so that others may lease them; bytes that rows name there stay
CREATE FUNCTION mantle.release_segments(p_volume int, p_mount_epoch bigint, p_segments int[]) RETURNS void
LANGUAGE plpgsql VOLATILE {as_change} AS $$
BEGIN
    PERFORM mantle.mounted(p_volume, p_mount_epoch, true);
    UPDATE mantle.segments s SET mount_epoch = NULL, owner = NULL
     WHERE s.volume = p_volume AND s.mount_epoch = p_mount_epoch AND s.segment = ANY (p_segments);
END $$;
