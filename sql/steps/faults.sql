-- Faults of a mutation, checked after the latches; NULL if there is none. Each reads one partition, so that Citus has
-- one node to ask.

--- {namespace_not_found} if the namespace does not exist
CREATE FUNCTION mantle.namespace_fault(p_ns bigint) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN CASE WHEN NOT EXISTS (SELECT FROM mantle.namespaces n WHERE n.ns = p_ns) THEN '{namespace_not_found}' END;
END $$;

--- {directory_removed} if the directory was removed; every create checks it (P16)
CREATE FUNCTION mantle.removed_fault(p_pid bigint) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- coalesce keeps the planner to the primary key and away from the index of tombstones.
    PERFORM FROM mantle.meta m WHERE m.pid = p_pid AND m.name = '/_ATTR' AND m.ts = 0 AND coalesce(m.removed, false);
    RETURN CASE WHEN FOUND THEN '{directory_removed}' END;
END $$;
