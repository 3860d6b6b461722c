-- Nested loops are off: with statistics that are behind, the planner would walk whole tables in them.
-- Every invariant that one snapshot of the tables can show; also every test's oracle (PROTOCOLS 15). One statement each,
-- so under REPEATABLE READ all see the same; under READ COMMITTED run it when nothing is written. Trees in the trash (pid 1)
-- are sound as any other; the trash itself has no counts.
CREATE FUNCTION mantle.check_entries()
RETURNS TABLE (problem text, ns bigint, pid bigint, name text, detail text)
LANGUAGE sql STABLE AS $$
    SELECT 'no_parent', e.ns, e.pid, e.name, 'directory ' || e.pid || ' has no entry'
      FROM mantle.meta e
     WHERE e.id IS NOT NULL AND e.pid NOT IN (0, 1)
       AND NOT EXISTS (SELECT FROM mantle.meta d WHERE d.id = e.pid AND d.explicit IS NOT NULL)
    UNION ALL
    SELECT 'removed_parent', e.ns, e.pid, e.name, 'directory ' || e.pid || ' has a tombstone'
      FROM mantle.meta e JOIN mantle.meta t ON t.pid = e.pid AND t.name = '/_ATTR' AND t.ts = 0 AND t.removed
     WHERE e.id IS NOT NULL
    UNION ALL
    SELECT 'id_twice', min(e.ns), min(e.pid), min(e.name), 'id ' || e.id || ' has ' || count(*) || ' entries'
      FROM mantle.meta e WHERE e.id IS NOT NULL GROUP BY e.id HAVING count(*) > 1
    UNION ALL
    SELECT 'object_and_directory', o.ns, o.pid, o.name, 'stands beside ' || d.name
      FROM mantle.meta d JOIN mantle.meta o ON o.pid = d.pid AND o.name = left(d.name, -1) AND o.ts = 0
     WHERE d.explicit IS NOT NULL
    UNION ALL
    SELECT 'other_namespace', e.ns, e.pid, e.name, 'its directory is in namespace ' || d.ns
      FROM mantle.meta d JOIN mantle.meta e ON e.pid = d.id AND e.ns <> d.ns WHERE d.explicit IS NOT NULL
    UNION ALL
    SELECT 'bad_name', e.ns, e.pid, e.name, mantle.entry_name_fault(e.name)
      FROM mantle.meta e WHERE e.id IS NOT NULL AND mantle.entry_name_fault(e.name) IS NOT NULL
    UNION ALL
    SELECT 'kind_and_name', e.ns, e.pid, e.name, 'a directory''s name, and only its, ends in a slash'
      FROM mantle.meta e WHERE e.id IS NOT NULL AND (right(e.name, 1) = '/') <> (e.explicit IS NOT NULL)
    UNION ALL
    SELECT 'namespace_without_root', n.ns, 0, n.name || '/', 'no entry of that id in the super-root'
      FROM mantle.namespaces n
     WHERE NOT EXISTS (SELECT FROM mantle.meta e WHERE e.pid = 0 AND e.name = n.name || '/' AND e.ts = 0 AND e.id = n.ns)
    UNION ALL
    SELECT 'root_without_namespace', e.ns, e.pid, e.name, 'no row in mantle.namespaces'
      FROM mantle.meta e
     WHERE e.pid = 0 AND e.id IS NOT NULL AND NOT EXISTS (SELECT FROM mantle.namespaces n WHERE n.ns = e.id)
    UNION ALL
    SELECT 'id_unrecorded', e.ns, e.pid, e.name, 'id ' || e.id || ' lies outside every block'
      FROM mantle.meta e
     WHERE e.id IS NOT NULL AND NOT coalesce((SELECT b.last_id >= e.id FROM mantle.id_blocks b
                                               WHERE b.first_id <= e.id ORDER BY b.first_id DESC LIMIT 1), false)
$$;
COMMENT ON FUNCTION mantle.check_entries() IS 'check: entries, one by one';
REVOKE ALL ON FUNCTION mantle.check_entries() FROM PUBLIC;

CREATE FUNCTION mantle.check_counts()
RETURNS TABLE (problem text, ns bigint, pid bigint, name text, detail text)
LANGUAGE sql STABLE AS $$
    SELECT 'counts', coalesce(c.ns, a.ns), coalesce(c.pid, a.pid), '/_ATTR',
           format('recorded %s entries, %s subdirectories, %s bytes; there are %s, %s, %s',
                  coalesce(a.entries, 0), coalesce(a.subdirectories, 0), coalesce(a.bytes, 0),
                  coalesce(c.entries, 0), coalesce(c.subdirectories, 0), coalesce(c.bytes, 0))
      FROM (SELECT e.pid, min(e.ns) AS ns, count(*) AS entries, count(e.explicit) AS subdirectories,
                   coalesce(sum(e.size), 0) AS bytes FROM mantle.meta e WHERE e.id IS NOT NULL AND e.pid <> 1 GROUP BY e.pid) AS c
      FULL JOIN (SELECT m.pid, min(m.ns) AS ns, sum(m.entries) AS entries, sum(m.subdirectories) AS subdirectories,
                        sum(m.bytes) AS bytes FROM mantle.meta m WHERE m.name = '/_ATTR' GROUP BY m.pid) AS a ON a.pid = c.pid
     WHERE (coalesce(a.entries, 0), coalesce(a.subdirectories, 0), coalesce(a.bytes, 0))
           <> (coalesce(c.entries, 0), coalesce(c.subdirectories, 0), coalesce(c.bytes, 0))
$$;
COMMENT ON FUNCTION mantle.check_counts() IS 'check: recorded counts against entries';
REVOKE ALL ON FUNCTION mantle.check_counts() FROM PUBLIC;

-- Does the way up from a directory end where a parent has no entry? (Then that is the damage, and reported as such.)
CREATE FUNCTION mantle.check_way_up_breaks(p_pid bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE v_id bigint := p_pid;
BEGIN
    -- More levels than any path has: it goes round.
    FOR i IN 0..256 LOOP
        SELECT m.pid INTO v_id FROM mantle.meta m WHERE m.id = v_id AND m.explicit IS NOT NULL LIMIT 1;
        IF NOT FOUND THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;
COMMENT ON FUNCTION mantle.check_way_up_breaks(bigint) IS 'check: is a parent missing above?';
REVOKE ALL ON FUNCTION mantle.check_way_up_breaks(bigint) FROM PUBLIC;

-- Directories below neither the super-root nor the trash although their parents have entries: they are on a cycle, or below
-- one. Level by level down from both, not a recursive query, whose size the planner cannot guess.
CREATE FUNCTION mantle.check_cycles()
RETURNS TABLE (problem text, ns bigint, pid bigint, name text, detail text)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_level bigint[] := ARRAY[0, 1]::bigint[];
    v_reached bigint[] := '{}';
BEGIN
    FOR i IN 0..256 LOOP
        SELECT array_agg(m.id) INTO v_level
          FROM mantle.meta m WHERE m.explicit IS NOT NULL AND m.pid IN (SELECT l.id FROM unnest(v_level) AS l(id));
        EXIT WHEN v_level IS NULL;
        v_reached := v_reached || v_level;
    END LOOP;
    RETURN QUERY
    SELECT 'cycle', d.ns, d.pid, d.name, 'directory ' || d.id || ' is on a cycle or below one'
      FROM mantle.meta d
     WHERE d.explicit IS NOT NULL AND d.id NOT IN (SELECT r.id FROM unnest(v_reached) AS r(id))
       AND NOT mantle.check_way_up_breaks(d.pid);
END $$;
COMMENT ON FUNCTION mantle.check_cycles() IS 'check: directories that no root leads to';
REVOKE ALL ON FUNCTION mantle.check_cycles() FROM PUBLIC;

CREATE FUNCTION mantle."check"()
RETURNS TABLE (problem text, ns bigint, pid bigint, name text, detail text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off SET jit = off SET work_mem = '128MB' AS $$
    SELECT * FROM mantle.check_entries()
    UNION ALL SELECT * FROM mantle.check_counts()
    UNION ALL SELECT * FROM mantle.check_cycles()
$$;
COMMENT ON FUNCTION mantle."check"() IS
    'Damage in the MetaTable: entries without a parent, ids with two entries, cycles, counts that are not the entries';
REVOKE ALL ON FUNCTION mantle."check"() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle."check"() TO mantle_analyst;
