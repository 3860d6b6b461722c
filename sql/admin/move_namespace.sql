-- Moves a namespace to another index group while it is in use (P33; ARCHITECTURE.md). An administrator begins the
-- move or aborts it. The leader of the new group takes each further step, so the move survives restarts. Each step
-- changes what gateways remember, so each raises `changes` of the group that they know.

--- Begins to move a namespace to an index group, whose leader does the rest; answers copy, both, switched or done
CREATE FUNCTION mantle.move_namespace(p_name text, p_index_group int) RETURNS text
LANGUAGE plpgsql VOLATILE {as_change} AS $$
DECLARE n mantle.namespaces;
BEGIN
    -- Shared: keeps the group from being dropped (mantle.drop_index_group).
    PERFORM mantle.raise_fault(mantle.latch_epoch(p_index_group, false));
    SELECT * INTO n FROM mantle.namespaces s WHERE s.name = p_name FOR UPDATE;
    IF n.ns IS NULL THEN
        RAISE EXCEPTION 'there is no namespace %', p_name USING ERRCODE = 'undefined_object';
    ELSIF NOT EXISTS (SELECT FROM mantle.index_groups g WHERE g.index_group = p_index_group) THEN
        RAISE EXCEPTION 'there is no index group %', p_index_group USING ERRCODE = 'undefined_object';
    ELSIF n.move_phase IS NOT NULL THEN
        IF p_index_group <> (CASE n.move_phase WHEN 'switched' THEN n.index_group ELSE n.other_group END) THEN
            RAISE EXCEPTION 'namespace % is being moved already', p_name USING ERRCODE = 'object_in_use';
        END IF;
        RETURN n.move_phase;
    ELSIF n.index_group = p_index_group THEN
        RETURN 'done';
    END IF;
    UPDATE mantle.namespaces s SET other_group = p_index_group, move_phase = 'copy', moves = s.moves + 1
     WHERE s.ns = n.ns;
    UPDATE mantle.index_groups g SET changes = g.changes + 1 WHERE g.index_group = n.index_group;
    RETURN 'copy';
END $$;

--- Aborts the move of a namespace. Answers switched if the new group serves it already, done if it does not move
CREATE FUNCTION mantle.abort_move(p_name text) RETURNS text LANGUAGE plpgsql VOLATILE {as_change} AS $$
DECLARE n mantle.namespaces;
BEGIN
    SELECT * INTO n FROM mantle.namespaces s WHERE s.name = p_name FOR UPDATE;
    IF n.ns IS NULL THEN
        RAISE EXCEPTION 'there is no namespace %', p_name USING ERRCODE = 'undefined_object';
    ELSIF n.move_phase IN ('copy', 'both') THEN
        UPDATE mantle.namespaces s SET other_group = NULL, move_phase = NULL WHERE s.ns = n.ns;
        UPDATE mantle.index_groups g SET changes = g.changes + 1 WHERE g.index_group = n.index_group;
        RETURN 'aborted';
    END IF;
    RETURN coalesce(n.move_phase, 'done');
END $$;

--- index: Takes the next step of a namespace's move to an index group; false if the move is not in the given phase
-- Called by the leader of the group that the namespace moves to. The step from `both` to `switched` waits for every
-- rename that the old group has prepared, and lets no later one begin. Such renames carry the old group's epoch, under
-- its latch, and mantle.read_place_delegated finds no epoch for a group that does not serve the namespace.
CREATE FUNCTION mantle.advance_move(p_ns bigint, p_index_group int, p_phase text) RETURNS boolean
LANGUAGE plpgsql VOLATILE {as_owner} SET lock_timeout = '20s' AS $$
DECLARE
    n mantle.namespaces;
    v_old int;
BEGIN
    IF p_phase = 'both' THEN
        v_old := (SELECT s.index_group FROM mantle.namespaces s WHERE s.ns = p_ns);
        PERFORM mantle.latch_epoch_everywhere(v_old);
    END IF;
    SELECT * INTO n FROM mantle.namespaces s WHERE s.ns = p_ns FOR UPDATE;
    IF (n.move_phase = p_phase) IS NOT TRUE
       OR p_index_group <> (CASE p_phase WHEN 'switched' THEN n.index_group ELSE n.other_group END)
       OR n.index_group <> v_old THEN
        RETURN false;
    END IF;
    UPDATE mantle.index_groups g SET changes = g.changes + 1 WHERE g.index_group = n.index_group;
    IF p_phase = 'copy' THEN
        UPDATE mantle.namespaces s SET move_phase = 'both' WHERE s.ns = p_ns;
    ELSIF p_phase = 'both' THEN
        UPDATE mantle.namespaces s
           SET index_group = n.other_group, other_group = n.index_group, move_phase = 'switched', moves = s.moves + 1
         WHERE s.ns = p_ns;
    ELSE
        UPDATE mantle.namespaces s SET other_group = NULL, move_phase = NULL WHERE s.ns = p_ns;
    END IF;
    RETURN true;
END $$;

--- monitor: The index group of every namespace; for one that moves, also the other group and the phase
CREATE FUNCTION mantle.namespace_groups() RETURNS TABLE (name text, index_group int, other_group int, move_phase text)
LANGUAGE sql STABLE {as_owner} AS $$
    SELECT n.name, n.index_group, n.other_group, n.move_phase FROM mantle.namespaces n ORDER BY n.name
$$;
