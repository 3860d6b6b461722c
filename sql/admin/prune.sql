-- Removes one implicit, empty directory, and puts its parent into the queue: pruning goes bottom-up (PROTOCOLS 17). Its
-- entry is read without a latch first, then under latches that are only tried for: a directory in use is not pruned now.
-- Answers false when it must be looked at again, true when it is done with.
CREATE FUNCTION mantle.prune(p_id bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_seen mantle.meta;
    v_dir mantle.meta;
BEGIN
    PERFORM mantle.fault(mantle.mutation_fault_code());
    SELECT * INTO v_seen FROM mantle.meta m WHERE m.id = p_id AND m.explicit IS NOT NULL;
    IF v_seen.id IS NULL OR v_seen.explicit OR v_seen.pid IN (0, 1) OR NOT mantle.is_empty(p_id) THEN
        RETURN true;
    END IF;
    -- What is in the trash is removed, and counted, by the operation that put it there.
    IF EXISTS (SELECT FROM mantle.operations o WHERE o.ns = v_seen.ns AND o.state = 'running')
       AND mantle.is_in_trash(v_seen.pid) THEN
        RETURN true;
    END IF;
    IF NOT mantle.try_latch_removal(p_id, v_seen.pid, v_seen.name) THEN
        RETURN false;
    END IF;
    SELECT * INTO v_dir FROM mantle.meta m
     WHERE m.pid = v_seen.pid AND m.name = v_seen.name AND m.ts = 0 AND m.id = p_id AND NOT m.explicit
       FOR UPDATE SKIP LOCKED;
    IF v_dir.id IS NULL THEN
        RETURN false;
    ELSIF NOT mantle.is_empty(p_id) THEN
        RETURN true;
    END IF;
    PERFORM mantle.bury(v_dir.ns, p_id);
    DELETE FROM mantle.meta m WHERE m.pid = v_dir.pid AND m.name = v_dir.name AND m.ts = 0;
    INSERT INTO mantle.prune_queue (id) VALUES (v_dir.pid);
    PERFORM mantle.finish(0, ARRAY[
        ROW(true, v_dir.ns, v_dir.pid, v_dir.name, p_id, v_dir.version + 1, v_dir.owner, v_dir.grp, v_dir.mode, NULL,
            NULL)::mantle.directory_change],
        ARRAY[ROW(v_dir.ns, v_dir.pid, -1, -1, 0)::mantle.delta]);
    RETURN true;
END $$;
COMMENT ON FUNCTION mantle.prune(bigint) IS 'Removes an implicit directory that has been left empty';
REVOKE ALL ON FUNCTION mantle.prune(bigint) FROM PUBLIC;
