--- gateway: A volume and its last mount; no row: it is not registered
CREATE FUNCTION mantle.volume(p_volume int)
RETURNS TABLE (
    volume int, name text, block_bytes int, segment_blocks bigint, segments int, mount_epoch bigint, mounted_by text,
    mounted timestamptz, state text)
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    RETURN QUERY
    SELECT v.volume, v.name, v.block_bytes, v.segment_blocks, v.segments, v.mount_epoch, v.mounted_by, v.mounted, v.state
      FROM mantle.volumes v WHERE v.volume = p_volume;
END $$;

--- gateway, monitor: All volumes, with the number of their segments that are leased, were released, and were never
--- used. `is_current`: the volume is mounted in the present history of this node. On Citus, call it on the coordinator
CREATE FUNCTION mantle.volume_status()
RETURNS TABLE (
    volume int, name text, state text, mounted_by text, mounted timestamptz, mount_epoch bigint, block_bytes int,
    segment_blocks bigint, segments int, leased int, released int, unused int, is_current boolean)
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    RETURN QUERY
    SELECT v.volume, v.name, v.state, v.mounted_by, v.mounted, v.mount_epoch, v.block_bytes, v.segment_blocks, v.segments,
           s.leased::int, s.released::int, v.segments - (s.leased + s.released)::int,
           v.mount_epoch > 0 AND v.lineage = mantle.lineage()
      FROM mantle.volumes v CROSS JOIN LATERAL (
               SELECT count(o.mount_epoch) AS leased, count(*) - count(o.mount_epoch) AS released
                 FROM mantle.segments o WHERE o.volume = v.volume) AS s
     ORDER BY v.volume;
END $$;
