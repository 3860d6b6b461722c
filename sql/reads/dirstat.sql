-- One statement: primary and delta records of one snapshot (two statements were wrong under compaction, PROTOCOLS 10).
CREATE FUNCTION mantle.dirstat(p_ns bigint, p_id bigint[])
RETURNS TABLE (ord int, code text, entries bigint, subdirectories bigint, bytes bigint, modified timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT u.n::int, CASE WHEN a.removed THEN 'MT018' END, coalesce(a.entries, 0)::bigint,
           coalesce(a.subdirectories, 0)::bigint, coalesce(a.bytes, 0)::bigint, a.modified
      FROM unnest(p_id) WITH ORDINALITY AS u(id, n)
      CROSS JOIN LATERAL (SELECT sum(m.entries) AS entries, sum(m.subdirectories) AS subdirectories, sum(m.bytes) AS bytes,
                                 max(m.modified) AS modified, bool_or(m.removed) AS removed
                            FROM mantle.meta m WHERE m.pid = u.id AND m.name = '/_ATTR' AND (p_ns = m.ns OR u.id = 0)) AS a;
END $$;
COMMENT ON FUNCTION mantle.dirstat(bigint, bigint[]) IS
    'Counts of directories: entries, subdirectories, bytes of their own objects. MT018 for a removed one';
REVOKE ALL ON FUNCTION mantle.dirstat(bigint, bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.dirstat(bigint, bigint[]) TO mantle_gateway;
