CREATE FUNCTION mantle.index_namespaces(p_index_group int) RETURNS TABLE (ns bigint, is_served boolean,
    move_phase text, moves int)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT n.ns, n.index_group = p_index_group, n.move_phase, n.moves FROM mantle.namespaces n
     WHERE n.index_group = p_index_group OR n.other_group = p_index_group
$$;
COMMENT ON FUNCTION mantle.index_namespaces IS
    'The namespaces that an index group must hold, whether it serves them, and the phase of their moves';
GRANT EXECUTE ON FUNCTION mantle.index_namespaces TO mantle_index;

-- A tree that is being emptied may outlive its namespace.
CREATE FUNCTION mantle.trash_namespaces() RETURNS SETOF bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT DISTINCT m.ns FROM mantle.meta m WHERE m.pid = 1 AND m.explicit IS NOT NULL
$$;
COMMENT ON FUNCTION mantle.trash_namespaces IS
    'The namespaces of removed trees that are not emptied yet; a namespace may itself be deleted';
GRANT EXECUTE ON FUNCTION mantle.trash_namespaces TO mantle_index;

-- An index reads this for a namespace that it meets for the first time.
CREATE FUNCTION mantle.assignments(p_ns bigint[]) RETURNS TABLE (ns bigint, index_group int, has_moved boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT n.ns, n.index_group, n.moves > 0 FROM mantle.namespaces n WHERE n.ns = ANY (p_ns)
$$;
COMMENT ON FUNCTION mantle.assignments IS
    'The index groups that namespaces are assigned to, and whether they ever moved';
GRANT EXECUTE ON FUNCTION mantle.assignments TO mantle_index;

-- `changes` belongs to the group and is read at the same moment: while it stays the same, so does every assignment to
-- the group.
CREATE FUNCTION mantle.assignment(p_name text, OUT index_group int, OUT also int, OUT changes bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT n.index_group, CASE WHEN n.move_phase <> 'copy' THEN n.other_group END, g.changes FROM mantle.namespaces n
        JOIN mantle.index_groups g ON g.index_group = n.index_group
     WHERE n.name = p_name
$$;
COMMENT ON FUNCTION mantle.assignment IS
    'The index group that serves a namespace, and the one that must also apply its changes; NULL if the '
    'namespace does not exist';
GRANT EXECUTE ON FUNCTION mantle.assignment TO mantle_gateway;

CREATE FUNCTION mantle.assignment_changes(p_index_group int) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT g.changes FROM mantle.index_groups g WHERE g.index_group = p_index_group
$$;
COMMENT ON FUNCTION mantle.assignment_changes IS 'Counts the namespaces that left an index group or began to leave it';
GRANT EXECUTE ON FUNCTION mantle.assignment_changes TO mantle_gateway;

CREATE FUNCTION mantle.hosted_groups() RETURNS TABLE (index_group int)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT g.index_group FROM mantle.index_groups g WHERE g.cluster_id IS NOT NULL
$$;
COMMENT ON FUNCTION mantle.hosted_groups IS 'The index groups that have or had replicas';
GRANT EXECUTE ON FUNCTION mantle.hosted_groups TO mantle_gateway;

CREATE FUNCTION mantle.all_assignment_changes() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(sum(g.changes), 0)::bigint FROM mantle.index_groups g
$$;
COMMENT ON FUNCTION mantle.all_assignment_changes IS
    'When this number changes, an index group reads its namespaces again';
GRANT EXECUTE ON FUNCTION mantle.all_assignment_changes TO mantle_index;
