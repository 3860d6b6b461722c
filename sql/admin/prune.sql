--- Removes a directory that is empty and latched exclusively, with its name
CREATE FUNCTION mantle.remove_directory(d mantle.meta) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_row text := d;
    v_changes text := ARRAY[ROW(true, d.ns, d.pid, d.name, d.id, d.version + 1, d.owner, d.grp, d.mode,
                                NULL, NULL)::mantle.directory_change];
BEGIN
    PERFORM FROM mantle.write_tombstone_delegated(d.id, d.ns);
    PERFORM FROM mantle.remove_entry_delegated(d.pid, v_row, v_changes, 0);
END $$;

--- Removes an implicit directory that is empty; false if it must be checked again
-- Queues its parent, so that pruning goes bottom-up (P17). Reads its entry without a latch first, then tries to latch:
-- a directory in use is not pruned now.
CREATE FUNCTION mantle.prune(p_id bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_seen mantle.meta;
    s mantle.place_state;
    v_got boolean;
    v_placements bigint := mantle.placements();
BEGIN
    PERFORM mantle.raise_fault(mantle.mutation_fault_code());
    SELECT * INTO v_seen FROM mantle.meta m WHERE m.id = p_id AND m.explicit IS NOT NULL;
    IF v_seen.id IS NULL OR v_seen.explicit OR v_seen.pid IN (0, 1) OR NOT mantle.is_empty(p_id) THEN
        RETURN true;
    END IF;
    -- An operation removes and counts what is in the trash.
    PERFORM FROM mantle.operations o WHERE o.pid = 1 AND o.ns = v_seen.ns AND o.state = 'running';
    IF FOUND AND mantle.is_in_trash(v_seen.pid) THEN
        RETURN true;
    END IF;
    SELECT g INTO v_got FROM mantle.try_latch_delegated(v_seen.pid, v_seen.name) AS g;
    IF v_got THEN
        SELECT g INTO v_got FROM mantle.try_latch_delegated(p_id, NULL) AS g;
    END IF;
    IF NOT v_got THEN
        RETURN false;
    END IF;
    SELECT * INTO s FROM mantle.read_place_delegated(v_seen.pid, v_seen.name, NULL, NULL);
    IF (s.entry).id IS DISTINCT FROM p_id OR (s.entry).explicit THEN
        RETURN false;
    END IF;
    SELECT e INTO v_got FROM mantle.is_empty_delegated(p_id) AS e;
    IF v_got THEN
        PERFORM mantle.remove_directory(s.entry);
        PERFORM mantle.raise_fault(mantle.placements_fault(v_placements));
    END IF;
    RETURN true;
END $$;
