--- Queues a directory for the worker's pruning, with the pid where the change was
-- Not one that was made by request: it stays when it is empty (P17). On Citus its entry may be on another node, so there
-- the worker finds that out. Callers hold its latch, or have just made it implicit.
CREATE FUNCTION mantle.queue_pruning(p_pid bigint, p_id bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    -- Citus caches no plan of a statement with a volatile function.
    v_seq bigint;
BEGIN
    IF NOT mantle.is_distributed() THEN
        PERFORM FROM mantle.meta m WHERE m.id = p_id AND m.explicit IS NOT NULL AND m.explicit;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    v_seq := mantle.delta_ts_base() + nextval('mantle.delta_ts');
    INSERT INTO mantle.prune_queue (pid, seq, id) VALUES (p_pid, v_seq, p_id);
END $$;
