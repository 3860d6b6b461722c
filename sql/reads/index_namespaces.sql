--- index: The namespaces that an index group must hold, whether it serves them, and the phase of their moves
CREATE FUNCTION mantle.index_namespaces(p_index_group int)
RETURNS TABLE (ns bigint, is_served boolean, move_phase text, moves int) LANGUAGE sql STABLE {as_owner} AS $$
    SELECT n.ns, n.index_group = p_index_group, n.move_phase, n.moves FROM mantle.namespaces n
     WHERE n.index_group = p_index_group OR n.other_group = p_index_group
$$;

--- index: The namespaces of removed trees that are not emptied yet; a tree may outlive its namespace
CREATE FUNCTION mantle.trash_namespaces() RETURNS SETOF bigint LANGUAGE sql STABLE {as_owner} AS $$
    SELECT DISTINCT m.ns FROM mantle.meta m WHERE m.pid = 1 AND m.explicit IS NOT NULL
$$;

--- index: The index groups of namespaces that an index meets for the first time, and whether they ever moved
CREATE FUNCTION mantle.assignments(p_ns bigint[]) RETURNS TABLE (ns bigint, index_group int, has_moved boolean)
LANGUAGE sql STABLE {as_owner} AS $$
    SELECT n.ns, n.index_group, n.moves > 0 FROM mantle.namespaces n WHERE n.ns = ANY (p_ns)
$$;

--- gateway, importer: The index group that serves a namespace, and the one that must also apply its changes; NULL: no namespace
-- `changes` is the group's, read at the same moment: while it stays the same, so does every assignment to the group.
CREATE FUNCTION mantle.assignment(p_name text, OUT index_group int, OUT also int, OUT changes bigint)
LANGUAGE sql STABLE {as_owner} AS $$
    SELECT n.index_group, CASE WHEN n.move_phase <> 'copy' THEN n.other_group END, g.changes
      FROM mantle.namespaces n JOIN mantle.index_groups g ON g.index_group = n.index_group WHERE n.name = p_name
$$;

--- gateway: Counts the namespaces that left an index group or began to leave it
CREATE FUNCTION mantle.assignment_changes(p_index_group int) RETURNS bigint LANGUAGE sql STABLE {as_owner} AS $$
    SELECT g.changes FROM mantle.index_groups g WHERE g.index_group = p_index_group
$$;

--- gateway: The index groups that have or had replicas
CREATE FUNCTION mantle.hosted_groups() RETURNS TABLE (index_group int) LANGUAGE sql STABLE {as_owner} AS $$
    SELECT g.index_group FROM mantle.index_groups g WHERE g.cluster_id IS NOT NULL
$$;

--- index: When this number changes, an index group reads its namespaces again
CREATE FUNCTION mantle.all_assignment_changes() RETURNS bigint LANGUAGE sql STABLE {as_owner} AS $$
    SELECT coalesce(sum(g.changes), 0)::bigint FROM mantle.index_groups g
$$;
