--- gateway: All namespaces, by name
CREATE FUNCTION mantle.list_namespaces() RETURNS TABLE (ns bigint, name text, owner int, created timestamptz)
LANGUAGE sql STABLE {as_owner} AS $$
    SELECT n.ns, n.name, n.owner, n.created FROM mantle.namespaces n ORDER BY n.name
$$;

--- gateway, importer: One namespace, or no row
CREATE FUNCTION mantle.namespace(p_name text) RETURNS TABLE (ns bigint, name text, owner int, created timestamptz)
LANGUAGE sql STABLE {as_owner} AS $$
    SELECT n.ns, n.name, n.owner, n.created FROM mantle.namespaces n WHERE n.name = p_name
$$;
