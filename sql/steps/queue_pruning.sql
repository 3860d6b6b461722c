--- Queues a directory for the worker's pruning, with the pid where the change was
CREATE FUNCTION mantle.queue_pruning(p_pid bigint, p_id bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    -- Citus caches no plan of a statement with a volatile function.
    v_seq bigint := mantle.delta_ts_base() + nextval('mantle.delta_ts');
BEGIN
    INSERT INTO mantle.prune_queue (pid, seq, id) VALUES (p_pid, v_seq, p_id);
END $$;
