-- Empties removed trees bottom-up in small transactions. `mantle.trash_targets` descends to directories that have
-- work, `mantle.empty_directories` does it. All state is in the tables, so the worker may stop at any time.
-- A directory is emptied and removed under its exclusive latch, which the worker only tries to take. Creates that
-- resolved the directory before its removal may still come: what they made before the latch is removed too, later ones
-- meet the tombstone.

--- The first entries of a directory in name order, up to a limit, from two ranges of the primary key as in mantle.list
CREATE FUNCTION mantle.first_entries(p_pid bigint, p_limit int)
RETURNS TABLE (name text, id bigint, is_directory boolean)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    (SELECT m.name, m.id, m.explicit IS NOT NULL FROM mantle.meta m
      WHERE m.pid = p_pid AND m.name < '/' AND m.ts = 0 ORDER BY m.name LIMIT p_limit)
    UNION ALL
    (SELECT m.name, m.id, m.explicit IS NOT NULL FROM mantle.meta m
      WHERE m.pid = p_pid AND m.name >= '0' AND m.ts = 0 ORDER BY m.name LIMIT p_limit)
    LIMIT p_limit;
END $$;

--- Whether a directory is in the trash or below a directory that is
CREATE FUNCTION mantle.is_in_trash(p_id bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE v_id bigint := p_id;
BEGIN
    -- Bounded, so that a cycle, which check() reports, cannot hang this.
    FOR i IN 1..1000 LOOP
        EXIT WHEN v_id IS NULL OR v_id <= 1;
        SELECT m.pid INTO v_id FROM mantle.meta m WHERE m.id = v_id AND m.explicit IS NOT NULL;
    END LOOP;
    RETURN v_id IS NOT DISTINCT FROM 1;
END $$;

--- Directories of a removed tree that have objects to remove now or are empty
-- Descends from a removed directory to the first one that begins with an object or is empty; or returns the children
-- of one directory if one of these begins with an object or is empty. At most 100 directories: two latches each, and
-- one for the parent.
CREATE FUNCTION mantle.trash_targets(p_root bigint) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_id bigint := p_root;
    v_children bigint[];
    v_leaf boolean;
BEGIN
    LOOP
        SELECT array_agg(e.id), bool_and(e.is_directory) IS NOT TRUE INTO v_children, v_leaf  -- any order
          FROM mantle.first_entries(v_id, 100) AS e;
        IF v_leaf THEN
            RETURN ARRAY[v_id];
        END IF;
        IF EXISTS (SELECT FROM unnest(v_children) AS c(id)
                    WHERE (SELECT bool_and(e.is_directory) FROM mantle.first_entries(c.id, 10) AS e) IS NOT TRUE) THEN
            RETURN v_children;
        END IF;
        v_id := v_children[1];
    END LOOP;
END $$;

--- Removes objects of a directory of a removed tree; answers whether it is empty then, and manifests that no row names any more.
--- NULL: another session uses it
CREATE FUNCTION mantle.empty_delegated(
    p_pid bigint, p_ns bigint, p_limit int, OUT objects bigint, OUT bytes bigint, OUT empty boolean,
    OUT manifests text[])
LANGUAGE plpgsql VOLATILE {delegated} AS $$
#variable_conflict use_column
DECLARE
    v_freed text[];
    v_shared text[];
    v_inline text[];
BEGIN
    IF NOT mantle.try_latch_delegated(p_pid, NULL) THEN
        RETURN;
    END IF;
    WITH gone AS (
        DELETE FROM mantle.meta m
         WHERE m.pid = p_pid AND m.ts = 0
           AND m.name = ANY (ARRAY(
                   SELECT e.name FROM mantle.first_entries(p_pid, p_limit) AS e WHERE NOT e.is_directory))
        RETURNING m.size, m.locator, m.shared)
    -- any order
    SELECT count(*), coalesce(sum(g.size), 0),
           array_agg(g.locator) FILTER (WHERE g.locator {in_volume} AND g.shared IS NOT TRUE),
           array_agg(g.locator) FILTER (WHERE g.locator {in_volume} AND g.shared),
           array_agg(g.locator) FILTER (WHERE g.locator {is_inline}),
           array_agg(g.locator) FILTER (WHERE g.locator {is_manifest} AND g.shared IS NOT TRUE)
      INTO objects, bytes, v_freed, v_shared, v_inline, manifests FROM gone AS g;
    IF v_freed IS NOT NULL THEN
        PERFORM mantle.free_bytes(v_freed);
    END IF;
    IF v_shared IS NOT NULL THEN
        PERFORM mantle.free_bytes(v_shared, true);
    END IF;
    IF v_inline IS NOT NULL THEN
        PERFORM mantle.drop_inline(p_pid, v_inline);
    END IF;
    empty := mantle.is_empty(p_pid);
    -- A tombstone needs no counts.
    IF objects > 0 AND NOT empty THEN
        PERFORM mantle.add_counts(p_ns, p_pid, -objects, 0, -bytes);
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_pid]));
END $$;

--- Removes objects of a removed tree, and the directories that are empty then; skips a directory in use
CREATE FUNCTION mantle.empty_directories(
    p_ns bigint, p_targets bigint[], p_batch int, OUT objects bigint, OUT bytes bigint, OUT directories bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_id bigint;
    d mantle.meta;
    s record;
    v_place mantle.place_state;
    v_placements bigint := mantle.placements();
    v_limit int := greatest(p_batch / greatest(cardinality(p_targets), 1), 10);
BEGIN
    objects := 0; bytes := 0; directories := 0;
    FOREACH v_id IN ARRAY p_targets LOOP
        SELECT * INTO d FROM mantle.meta m WHERE m.id = v_id AND m.explicit IS NOT NULL;
        CONTINUE WHEN d.id IS NULL;
        SELECT g AS got INTO s FROM mantle.try_latch_delegated(d.pid, d.name) AS g;
        CONTINUE WHEN NOT s.got;
        SELECT * INTO s FROM mantle.empty_delegated(v_id, p_ns, v_limit);
        objects := objects + coalesce(s.objects, 0);
        bytes := bytes + coalesce(s.bytes, 0);
        IF s.manifests <> '{}' THEN
            PERFORM mantle.free_manifests(s.manifests);
        END IF;
        IF s.empty THEN
            -- The entry still exists, now that its name is latched.
            SELECT * INTO v_place FROM mantle.read_place_delegated(d.pid, d.name, NULL, NULL);
            IF (v_place.entry).id = v_id THEN
                PERFORM mantle.remove_directory(v_place.entry);
                directories := directories + 1;
            END IF;
        END IF;
    END LOOP;
    PERFORM mantle.raise_fault(mantle.placements_fault(v_placements));
END $$;

--- The worker's step that empties removed trees
-- It takes the operation that has waited longest, so that none waits for another one's end.
CREATE FUNCTION mantle.maintain_trash(p_batch int) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_operation mantle.operations;
    s record;
    v_done boolean;
    v_now timestamptz;
BEGIN
    PERFORM mantle.raise_fault(mantle.mutation_fault_code());
    -- On Citus, only the node that has the trash.
    IF NOT mantle.is_local('{1}') THEN
        RETURN 0;
    END IF;
    -- Usually there is none. This looks for it without a lock: to lock rows, even none, Citus begins a transaction of
    -- its own.
    PERFORM FROM mantle.operations o WHERE o.pid = 1 AND o.state = 'running' LIMIT 1;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    SELECT * INTO v_operation FROM mantle.operations o WHERE o.pid = 1 AND o.state = 'running'
     ORDER BY o.stepped LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF v_operation.id IS NULL THEN
        RETURN 0;
    END IF;
    SELECT * INTO s FROM mantle.empty_directories(
        v_operation.ns, mantle.trash_targets(v_operation.directory_id), p_batch);
    v_now := clock_timestamp();
    v_done := NOT EXISTS (SELECT FROM mantle.meta m WHERE m.pid = 1 AND m.name = v_operation.directory_id || '/');
    -- Citus accepts no volatile function in an UPDATE.
    UPDATE mantle.operations o
       SET objects = o.objects + s.objects, directories = o.directories + s.directories, bytes = o.bytes + s.bytes,
           stepped = v_now, state = CASE WHEN v_done THEN 'done' ELSE o.state END,
           finished = CASE WHEN v_done THEN v_now END
     WHERE o.pid = 1 AND o.id = v_operation.id;
    RETURN s.objects + s.directories;
END $$;
