--- Latches an index group's epoch exclusively, on the node of a partition
CREATE FUNCTION mantle.latch_epoch_delegated(p_pid bigint, p_index_group int) RETURNS void
LANGUAGE plpgsql VOLATILE {delegated} SET lock_timeout = '8s' AS $$
BEGIN
    PERFORM mantle.raise_fault(mantle.latch_epoch(p_index_group, true));
END $$;

--- Latches an index group's epoch exclusively, on every node
-- Waits for every rename in progress (each holds the latch shared on its own node), and lets none begin before the
-- commit (P21).
CREATE FUNCTION mantle.latch_epoch_everywhere(p_index_group int) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE v_pid bigint;
BEGIN
    PERFORM mantle.raise_fault(mantle.mutation_fault_code());
    FOR v_pid IN SELECT p.pid FROM mantle.node_partitions() AS p(pid) LOOP
        PERFORM FROM mantle.latch_epoch_delegated(v_pid, p_index_group);
    END LOOP;
    IF NOT mantle.is_distributed() THEN
        PERFORM mantle.raise_fault(mantle.latch_epoch(p_index_group, true));
    END IF;
END $$;

--- index: Raises an index group's epoch if it is the expected one; NULL if it is not
CREATE FUNCTION mantle.raise_epoch(p_index_group int, p_expected bigint, p_cluster_id text) RETURNS bigint
LANGUAGE plpgsql VOLATILE {as_owner} SET lock_timeout = '8s' AS $$
DECLARE
    v_epoch bigint;
    v_timeline int := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
BEGIN
    PERFORM mantle.latch_epoch_everywhere(p_index_group);
    UPDATE mantle.index_groups g
       SET epoch = g.epoch + 1, cluster_id = p_cluster_id, timeline = v_timeline,
           system_identifier = (SELECT s.system_identifier FROM pg_control_system() AS s)
     WHERE g.index_group = p_index_group AND g.epoch = p_expected
    RETURNING g.epoch INTO v_epoch;
    RETURN v_epoch;
END $$;
