--- {wrong_node} on a Citus node that is not the coordinator: only the coordinator has rows of volumes and segments
CREATE FUNCTION mantle.volumes_fault() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN coalesce(mantle.mutation_fault_code(), CASE WHEN mantle.delta_ts_base() <> 0 THEN '{wrong_node}' END);
END $$;

--- Locks a volume and returns it; an error if it is not mounted under this epoch, in the present history of this node
-- `p_exclusive`: no other call for the volume runs meanwhile.
CREATE FUNCTION mantle.mounted(p_volume int, p_mount_epoch bigint, p_exclusive boolean) RETURNS mantle.volumes
LANGUAGE plpgsql VOLATILE AS $$
DECLARE v mantle.volumes;
BEGIN
    PERFORM mantle.raise_fault(mantle.volumes_fault());
    IF p_exclusive THEN
        PERFORM FROM mantle.volumes o WHERE o.volume = p_volume FOR UPDATE;
    END IF;
    SELECT * INTO v FROM mantle.volumes o WHERE o.volume = p_volume FOR SHARE;
    PERFORM mantle.raise_fault(
                CASE WHEN v.volume IS NULL THEN '{no_such_volume}'
                     WHEN (v.mount_epoch = p_mount_epoch AND v.lineage = mantle.lineage()) IS NOT TRUE
                          THEN '{volume_superseded}' END);
    RETURN v;
END $$;
