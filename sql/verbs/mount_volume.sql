--- gateway: Registers a new volume, and returns its number; p_name tells people where it is
-- Each timeline has 65,536 numbers of its own. So after a restore, which forgets volumes, no number is given again.
CREATE FUNCTION mantle.register_volume(
    p_cluster uuid, p_name text, p_block_bytes int, p_segment_blocks bigint, p_segments int) RETURNS int
LANGUAGE plpgsql VOLATILE {as_change} AS $$
DECLARE
    v_lineage text := mantle.lineage();
    v_volume int;
BEGIN
    PERFORM mantle.raise_fault(coalesce(
                mantle.volumes_fault(),
                CASE WHEN (p_cluster = mantle.cluster_id() AND octet_length(p_name) BETWEEN 1 AND {KEY_BYTES_MAX}
                           AND p_block_bytes BETWEEN 512 AND 65536 AND p_block_bytes & (p_block_bytes - 1) = 0
                           AND p_segment_blocks BETWEEN 1 AND 2147483648
                           AND p_segments BETWEEN 1 AND {VOLUME_SEGMENTS_MAX}) IS NOT TRUE THEN '{invalid_argument}' END));
    LOCK TABLE mantle.volumes IN SHARE ROW EXCLUSIVE MODE;
    v_volume := 1 + greatest(
        (SELECT max(v.volume) FROM mantle.volumes v), (split_part(v_lineage, '/', 2)::int - 1) * 65536);
    INSERT INTO mantle.volumes (volume, name, block_bytes, segment_blocks, segments, lineage)
    VALUES (v_volume, p_name, p_block_bytes, p_segment_blocks, p_segments, v_lineage);
    RETURN v_volume;
END $$;

--- gateway: Records that a gateway has mounted a volume, under the mount epoch that is now in the volume; also after
--- the volume has grown, and after a failover. {volume_superseded} for an old copy, and for an older mount
-- The caller holds the volume's lock, so nobody else writes to the volume. The same mount may be recorded again. A
-- lower epoch than the recorded one is that of an old copy. A higher one is accepted, because a process may die before
-- it records its mount, and a restore forgets mounts. After a failover or a restore, rows of segments may be missing
-- although rows of objects (on Citus maybe on another node) name bytes there. So from then on every segment counts as
-- used.
CREATE FUNCTION mantle.mount_volume(
    p_cluster uuid, p_volume int, p_mount_epoch bigint, p_block_bytes int, p_segment_blocks bigint, p_segments int,
    p_owner text) RETURNS void
LANGUAGE plpgsql VOLATILE {as_change} AS $$
DECLARE
    v mantle.volumes;
    v_lineage text := mantle.lineage();
BEGIN
    PERFORM mantle.raise_fault(mantle.volumes_fault());
    SELECT * INTO v FROM mantle.volumes o WHERE o.volume = p_volume FOR UPDATE;
    PERFORM mantle.raise_fault(
                CASE WHEN (p_volume IS NOT NULL AND p_cluster = mantle.cluster_id() AND p_mount_epoch > 0
                           AND octet_length(p_owner) BETWEEN 1 AND {KEY_BYTES_MAX}
                           AND p_segments BETWEEN 1 AND {VOLUME_SEGMENTS_MAX}) IS NOT TRUE THEN '{invalid_argument}'
                     WHEN v.volume IS NULL THEN '{no_such_volume}'
                     WHEN (v.block_bytes, v.segment_blocks) IS DISTINCT FROM (p_block_bytes, p_segment_blocks)
                          THEN '{invalid_argument}'
                     WHEN p_mount_epoch < v.mount_epoch OR p_segments < v.segments
                          OR p_mount_epoch = v.mount_epoch AND p_owner <> v.mounted_by THEN '{volume_superseded}' END);
    IF v.lineage <> v_lineage THEN
        INSERT INTO mantle.segments (volume, segment, epoch)
        SELECT p_volume, n, 0 FROM generate_series(0, p_segments - 1) AS n ON CONFLICT DO NOTHING;
    END IF;
    UPDATE mantle.volumes o
       SET mount_epoch = p_mount_epoch, mounted_by = p_owner, segments = p_segments, lineage = v_lineage,
           mounted = CASE WHEN p_mount_epoch = o.mount_epoch THEN o.mounted ELSE now() END
     WHERE o.volume = p_volume;
END $$;

--- gateway: Sets the state of a volume: active, read_only, draining or lost
CREATE FUNCTION mantle.set_volume_state(p_volume int, p_state text) RETURNS void
LANGUAGE plpgsql VOLATILE {as_change} AS $$
BEGIN
    PERFORM mantle.raise_fault(coalesce(
                mantle.volumes_fault(),
                CASE WHEN p_state IN ('active', 'read_only', 'draining', 'lost') IS NOT TRUE THEN '{invalid_argument}' END));
    UPDATE mantle.volumes v SET state = p_state WHERE v.volume = p_volume;
    PERFORM mantle.raise_fault(CASE WHEN NOT FOUND THEN '{no_such_volume}' END);
END $$;
