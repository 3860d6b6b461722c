--- analyst: The rows of depth_distribution
-- The attribute and delta records of a directory count what it holds, which is one level deeper than the directory.
CREATE FUNCTION mantle.depths()
RETURNS TABLE (namespace text, depth int, directories bigint, objects bigint, bytes bigint)
LANGUAGE plpgsql STABLE {as_caller} SET work_mem = '64MB' AS $$
DECLARE
    d record;
    v_namespaces bigint[];
    v_depths int[];
    v_names text[];
BEGIN
    -- any order, the same for all
    SELECT coalesce(array_agg(m.id), '{}') AS ids, coalesce(array_agg(m.pid), '{}') AS pids, array_agg(m.ns) AS ns
      INTO d FROM mantle.meta m WHERE m.explicit IS NOT NULL;
    v_depths := mantle.tree_depths(d.ids, d.pids);
    -- any order, the same for both
    SELECT array_agg(n.ns), array_agg(n.name) INTO v_namespaces, v_names FROM mantle.namespaces n;
    RETURN QUERY
    -- One row for each namespace and depth: the namespace's position in the array times 1,000, plus the depth.
    SELECT v_names[s.n / 1000], s.n % 1000, s.directories, s.objects, s.bytes
      FROM mantle.sums_by_row(v_namespaces, d.ids, ARRAY(
               SELECT n.row::int * 1000 + u.depth FROM unnest(d.ns, v_depths) WITH ORDINALITY AS u(ns, depth, i)
                 LEFT JOIN unnest(v_namespaces) WITH ORDINALITY AS n(ns, row) ON n.ns = u.ns ORDER BY u.i)) AS s
     WHERE s.directories + s.objects > 0;
END $$;

--- Directories and objects by depth and namespace; entries of the root have depth 1
CREATE VIEW mantle.depth_distribution WITH (security_invoker = true) AS
SELECT d.namespace, d.depth, d.directories, d.objects, d.bytes FROM mantle.depths() AS d ORDER BY 1, 2;
GRANT SELECT ON mantle.depth_distribution TO mantle_analyst;
