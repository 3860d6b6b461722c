CREATE FUNCTION mantle.list_namespaces() RETURNS TABLE (ns bigint, name text, owner int, created timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT n.ns, n.name, n.owner, n.created FROM mantle.namespaces n ORDER BY n.name
$$;
COMMENT ON FUNCTION mantle.list_namespaces IS 'All namespaces, by name';
GRANT EXECUTE ON FUNCTION mantle.list_namespaces TO mantle_gateway;

CREATE FUNCTION mantle.namespace(p_name text) RETURNS TABLE (ns bigint, name text, owner int, created timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT n.ns, n.name, n.owner, n.created FROM mantle.namespaces n WHERE n.name = p_name
$$;
COMMENT ON FUNCTION mantle.namespace IS 'One namespace, or no row';
GRANT EXECUTE ON FUNCTION mantle.namespace TO mantle_gateway;
