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

--- gateway: Removes an implicit directory and those below it at once, without the worker, if no key is in them
-- `state`: `gone`; `more` if there were too many for one call; `kept` if a key is in them, or the directory was made by
-- request. p_keeps: only those below it, for the root of a namespace. What came in between is found after the latches.
CREATE FUNCTION mantle.prune_tree(p_id bigint, p_keeps boolean, OUT state text)
LANGUAGE plpgsql VOLATILE {as_change} AS $$
DECLARE
    v_max CONSTANT int := 250;
    v_ids bigint[];
    v_pids bigint[];
    v_names text[];
    v_is_all boolean;
    d mantle.meta;
    v_placements bigint := mantle.placements();
BEGIN
    PERFORM mantle.raise_fault(mantle.mutation_fault_code());
    SELECT * INTO d FROM mantle.meta m WHERE m.id = p_id AND m.explicit IS NOT NULL;
    v_ids := CASE WHEN p_keeps OR d.explicit IS FALSE THEN mantle.prunable_directories(p_id, v_max) END;
    IF d.id IS NULL OR d.pid = 1 THEN
        state := 'gone';
        RETURN;
    ELSIF v_ids IS NULL THEN
        state := 'kept';
        RETURN;
    END IF;
    v_is_all := p_id = ANY (v_ids);
    v_ids := CASE WHEN p_keeps THEN array_remove(v_ids, p_id) ELSE v_ids END;
    SELECT array_agg(m.pid ORDER BY m.id), array_agg(m.name ORDER BY m.id) INTO v_pids, v_names
      FROM mantle.meta m WHERE m.id = ANY (v_ids) AND m.explicit IS NOT NULL;
    PERFORM mantle.latch_across_nodes(coalesce(v_pids, '{}'), coalesce(v_names, '{}'), v_ids, NULL);
    state := 'more';
    IF EXISTS (SELECT m.pid FROM mantle.meta m
                WHERE m.pid = ANY (v_ids) AND m.id IS NOT NULL AND m.id <> ALL (v_ids)) THEN
        RETURN;
    END IF;
    -- Children before their parents.
    FOR i IN REVERSE cardinality(v_ids)..1 LOOP
        SELECT * INTO d FROM mantle.meta m WHERE m.id = v_ids[i] AND m.explicit IS NOT NULL;
        -- Made by request, moved or removed since; then those above it are not empty either.
        IF d.id IS NULL OR d.explicit
           OR NOT EXISTS (SELECT FROM unnest(v_pids, v_names) AS l(pid, name) WHERE l.pid = d.pid AND l.name = d.name) THEN
            RETURN;
        END IF;
        PERFORM mantle.remove_directory(d);
    END LOOP;
    PERFORM mantle.raise_fault(mantle.placements_fault(v_placements));
    IF v_is_all THEN
        state := 'gone';
    END IF;
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
