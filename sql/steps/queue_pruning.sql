CREATE FUNCTION mantle.queue_pruning(p_pid bigint, p_id bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO mantle.prune_queue (pid, seq, id) VALUES (p_pid, mantle.delta_ts_base() + nextval('mantle.delta_ts'), p_id);
END $$;
COMMENT ON FUNCTION mantle.queue_pruning(bigint, bigint) IS 'Has the worker look at a directory, from where the change was';
REVOKE ALL ON FUNCTION mantle.queue_pruning(bigint, bigint) FROM PUBLIC;
