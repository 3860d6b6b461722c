-- Emptying removed trees, bottom-up, in small transactions: `mantle.trash_targets` descends to a directory where there is
-- something to do, `mantle.empty_some` does it. State is in the tables only, so the worker may stop at any time.
-- A directory is emptied and removed under its exclusive latch, which is only tried for. Creates that resolved it before
-- it was removed may still come: what they made before the latch goes too, what comes after meets the tombstone.

-- Up to so many entries in name order: two ranges of the primary key, as in mantle.list.
CREATE FUNCTION mantle.first_entries(p_pid bigint, p_limit int)
RETURNS TABLE (name text, id bigint, is_directory boolean) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
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
COMMENT ON FUNCTION mantle.first_entries(bigint, int) IS 'The first entries of a directory, in name order';
REVOKE ALL ON FUNCTION mantle.first_entries(bigint, int) FROM PUBLIC;

-- Is a directory in the trash, or below one that is?
CREATE FUNCTION mantle.is_in_trash(p_id bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE v_id bigint := p_id;
BEGIN
    -- Bounded: a cycle, which check() reports, does not hang this.
    FOR i IN 1..1000 LOOP
        EXIT WHEN v_id IS NULL OR v_id <= 1;
        SELECT m.pid INTO v_id FROM mantle.meta m WHERE m.id = v_id AND m.explicit IS NOT NULL;
    END LOOP;
    RETURN v_id IS NOT DISTINCT FROM 1;
END $$;
COMMENT ON FUNCTION mantle.is_in_trash(bigint) IS 'Was a directory removed with a tree that is not emptied yet?';
REVOKE ALL ON FUNCTION mantle.is_in_trash(bigint) FROM PUBLIC;

-- The directories to be worked on now: the first one, by descending from a removed one, that begins with an object or is
-- empty; or children of one directory, at least one of which is so. At most 100: two latches each, and one for the parent.
CREATE FUNCTION mantle.trash_targets(p_root bigint) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_id bigint := p_root;
    v_children bigint[];
    v_leaf boolean;
BEGIN
    LOOP
        SELECT array_agg(e.id), NOT coalesce(bool_and(e.is_directory), false) INTO v_children, v_leaf
          FROM mantle.first_entries(v_id, 100) AS e;
        IF v_leaf THEN
            RETURN ARRAY[v_id];
        END IF;
        IF EXISTS (SELECT FROM unnest(v_children) AS c(id)
                    WHERE NOT coalesce((SELECT bool_and(e.is_directory) FROM mantle.first_entries(c.id, 10) AS e), false)) THEN
            RETURN v_children;
        END IF;
        v_id := v_children[1];
    END LOOP;
END $$;
COMMENT ON FUNCTION mantle.trash_targets(bigint) IS 'Directories of a removed tree that can be emptied of something now';
REVOKE ALL ON FUNCTION mantle.trash_targets(bigint) FROM PUBLIC;

-- Tries for the latches of each; answers those that were got and are still where they were.
CREATE FUNCTION mantle.latch_targets(p_targets bigint[]) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_seen mantle.meta[];
    v_held mantle.meta[];
BEGIN
    v_seen := ARRAY(SELECT m FROM mantle.meta m WHERE m.id = ANY (p_targets) AND m.explicit IS NOT NULL);
    v_held := ARRAY(SELECT s FROM unnest(v_seen) AS s WHERE mantle.try_latch_removal(s.id, s.pid, s.name));
    RETURN ARRAY(SELECT m.id FROM unnest(v_held) AS h JOIN mantle.meta m
                     ON m.pid = h.pid AND m.name = h.name AND m.ts = 0 AND m.id = h.id);
END $$;
COMMENT ON FUNCTION mantle.latch_targets(bigint[]) IS 'Latches directories of a removed tree without waiting; answers which';
REVOKE ALL ON FUNCTION mantle.latch_targets(bigint[]) FROM PUBLIC;

-- Removes directories that are latched and empty: tombstones, counts of their parents (the trash has none), the message.
CREATE FUNCTION mantle.bury_some(p_ns bigint, p_ids bigint[], p_deltas mantle.delta[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_changes mantle.directory_change[];
    v_deltas mantle.delta[] := p_deltas;
BEGIN
    PERFORM mantle.bury(p_ns, i.id) FROM unnest(p_ids) AS i(id);
    WITH gone AS (DELETE FROM mantle.meta m WHERE m.id = ANY (p_ids) AND m.explicit IS NOT NULL RETURNING m.*)
    SELECT array_agg(ROW(true, p_ns, g.pid, g.name, g.id, g.version + 1, g.owner, g.grp, g.mode, NULL, NULL)::mantle.directory_change),
           v_deltas || coalesce(array_agg(ROW(p_ns, g.pid, -1, -1, 0)::mantle.delta) FILTER (WHERE g.pid <> 1), '{}')
      INTO v_changes, v_deltas FROM gone AS g;
    PERFORM mantle.finish(0, v_changes, v_deltas);
END $$;
COMMENT ON FUNCTION mantle.bury_some(bigint, bigint[], mantle.delta[]) IS 'Removes empty directories of a removed tree';
REVOKE ALL ON FUNCTION mantle.bury_some(bigint, bigint[], mantle.delta[]) FROM PUBLIC;

CREATE FUNCTION mantle.empty_some(
    p_ns bigint, p_targets bigint[], p_batch int, OUT objects bigint, OUT bytes bigint, OUT removed bigint[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_held bigint[] := mantle.latch_targets(p_targets);
    v_deltas mantle.delta[];
BEGIN
    WITH gone AS (
        DELETE FROM mantle.meta m
         USING unnest(v_held) AS h(id)
         CROSS JOIN LATERAL mantle.first_entries(h.id, greatest(p_batch / greatest(cardinality(v_held), 1), 10)) AS e
         WHERE NOT e.is_directory AND m.pid = h.id AND m.name = e.name AND m.ts = 0
        RETURNING m.pid, m.size),
    counted AS (
        SELECT g.pid, count(*) AS objects, coalesce(sum(g.size), 0) AS bytes FROM gone AS g GROUP BY g.pid)
    SELECT coalesce(sum(c.objects), 0), coalesce(sum(c.bytes), 0),
           coalesce(array_agg(ROW(p_ns, c.pid, -c.objects, 0, -c.bytes)::mantle.delta), '{}')
      INTO objects, bytes, v_deltas FROM counted AS c;
    removed := ARRAY(SELECT h.id FROM unnest(v_held) AS h(id) WHERE mantle.is_empty(h.id));
    -- A tombstone has no counts to be brought up to date.
    v_deltas := ARRAY(SELECT d::mantle.delta FROM unnest(v_deltas) AS d WHERE d.pid <> ALL (removed));
    PERFORM mantle.bury_some(p_ns, removed, v_deltas);
END $$;
COMMENT ON FUNCTION mantle.empty_some(bigint, bigint[], int) IS
    'Removes objects of a removed tree, and directories that are empty then';
REVOKE ALL ON FUNCTION mantle.empty_some(bigint, bigint[], int) FROM PUBLIC;

-- The operation that waits longest has its turn, so that none waits for another one's end.
CREATE FUNCTION mantle.maintain_trash(p_batch int) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_operation mantle.operations;
    s record;
    v_done boolean;
BEGIN
    PERFORM mantle.fault(mantle.mutation_fault_code());
    SELECT * INTO v_operation FROM mantle.operations o WHERE o.state = 'running'
     ORDER BY o.stepped LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF v_operation.id IS NULL THEN
        RETURN 0;
    END IF;
    SELECT * INTO s FROM mantle.empty_some(v_operation.ns, mantle.trash_targets(v_operation.directory_id), p_batch);
    v_done := NOT EXISTS (SELECT FROM mantle.meta m WHERE m.pid = 1 AND m.name = v_operation.directory_id || '/');
    UPDATE mantle.operations o
       SET objects = o.objects + s.objects, directories = o.directories + cardinality(s.removed),
           bytes = o.bytes + s.bytes, stepped = clock_timestamp(),
           state = CASE WHEN v_done THEN 'done' ELSE o.state END, finished = CASE WHEN v_done THEN clock_timestamp() END
     WHERE o.id = v_operation.id;
    RETURN s.objects + cardinality(s.removed);
END $$;
COMMENT ON FUNCTION mantle.maintain_trash(int) IS 'The worker''s step that empties removed trees';
REVOKE ALL ON FUNCTION mantle.maintain_trash(int) FROM PUBLIC;
