-- Checks every invariant that one snapshot of the tables can show; every test uses it as an oracle (P15). STABLE, so
-- all reads use the calling statement's snapshot. Trees in the trash (pid 1) are checked like others; the trash itself
-- has no counts. A caller without a grant on all namespaces sees the damage of the granted ones.
-- The queries have shapes that Citus can run. What is in one directory is grouped or joined by pid, on its shard. What
-- spans directories is combined from sets that are read separately. Details are read again only for damaged entries.

--- analyst: check: problems that one entry shows alone, in one pass
CREATE FUNCTION mantle.check_entries() RETURNS TABLE (problem text, ns bigint, pid bigint, name text, detail text)
LANGUAGE plpgsql STABLE {as_caller} AS $$
#variable_conflict use_column
DECLARE
    v_first bigint[];
    v_last bigint[];
    e record;
BEGIN
    SELECT coalesce(array_agg(b.first_id ORDER BY b.first_id), '{}'),
           coalesce(array_agg(b.last_id ORDER BY b.first_id), '{}')
      INTO v_first, v_last FROM mantle.id_blocks b;
    FOR e IN EXECUTE
        'SELECT m.ns, m.pid, m.name, m.id, m.explicit, mantle.entry_name_fault(m.name) AS fault, m.recorded
           FROM (SELECT m.ns, m.pid, m.name, m.id, m.explicit,
                        (m.id <= ($2)[width_bucket(m.id, $1)]) IS TRUE AS recorded
                   FROM mantle.meta m WHERE m.id IS NOT NULL) AS m
          WHERE NOT m.recorded OR mantle.entry_name_fault(m.name) IS NOT NULL
                OR (right(m.name, 1) = ''/'') <> (m.explicit IS NOT NULL)'
        USING v_first, v_last
    LOOP
        ns := e.ns; pid := e.pid; name := e.name;
        IF e.fault IS NOT NULL THEN
            problem := 'bad_name'; detail := e.fault;
            RETURN NEXT;
        END IF;
        IF (right(e.name, 1) = '/') <> (e.explicit IS NOT NULL) THEN
            problem := 'kind_and_name'; detail := 'a directory''s name, and only its, ends in a slash';
            RETURN NEXT;
        END IF;
        IF NOT e.recorded THEN
            problem := 'id_unrecorded'; detail := 'id ' || e.id || ' lies outside every block';
            RETURN NEXT;
        END IF;
    END LOOP;
    RETURN QUERY
    SELECT 'object_and_directory', o.ns, o.pid, o.name, 'stands beside ' || o.name || '/'
      FROM mantle.meta d JOIN mantle.meta o ON o.pid = d.pid AND o.name = left(d.name, -1) AND o.ts = 0
     WHERE d.explicit IS NOT NULL;
    RETURN QUERY
    SELECT 'id_twice', min(m.ns), min(m.pid), min(m.name), 'id ' || m.id || ' has ' || count(*) || ' entries'
      FROM mantle.meta m
     WHERE m.id = ANY (ARRAY(SELECT t.id FROM mantle.meta t WHERE t.id IS NOT NULL GROUP BY t.id HAVING count(*) > 1))
     GROUP BY m.id;
END $$;

--- analyst: check: what is recorded of a directory against its entries and its own entry; takes all directories
CREATE FUNCTION mantle.check_places(p_ids bigint[], p_namespaces bigint[])
RETURNS TABLE (problem text, ns bigint, pid bigint, name text, detail text) LANGUAGE plpgsql STABLE {as_caller} AS $$
#variable_conflict use_column
DECLARE
    v_all boolean := mantle.may_read(0);  -- otherwise the super-root's records are hidden
    r record;
BEGIN
    FOR r IN EXECUTE $query$
        WITH p AS MATERIALIZED (
            SELECT m.pid, min(m.ns) AS ns, max(m.ns) AS last_ns, count(m.id) AS found, bool_or(m.removed) AS removed,
                   coalesce(sum(m.entries), 0)::bigint AS entries, coalesce(sum(m.bytes), 0)::bigint AS bytes,
                   coalesce(sum(m.subdirectories), 0)::bigint AS subdirectories,
                   CASE m.pid WHEN 1 THEN 0 ELSE count(m.id) END AS real_entries,
                   CASE m.pid WHEN 1 THEN 0 ELSE count(m.explicit) END AS real_subdirectories,
                   CASE m.pid WHEN 1 THEN 0 ELSE coalesce(sum(m.size), 0)::bigint END AS real_bytes
              FROM mantle.meta m GROUP BY m.pid),
        d AS MATERIALIZED (SELECT u.id, u.ns FROM unnest($1, $2) AS u(id, ns))
        SELECT f.problem, p.*, d.ns AS directory_ns
          FROM p LEFT JOIN d ON d.id = p.pid
         CROSS JOIN LATERAL (VALUES
               ('counts', (p.pid <> 0 OR $3) AND (p.entries, p.subdirectories, p.bytes)
                                                 <> (p.real_entries, p.real_subdirectories, p.real_bytes)),
               ('removed_parent', p.removed AND p.found > 0),
               ('no_parent', d.id IS NULL AND p.found > 0 AND p.pid > 1),
               ('other_namespace', p.ns <> d.ns OR p.last_ns <> d.ns)) AS f(problem, is_so)
         WHERE f.is_so $query$ USING p_ids, p_namespaces, v_all
    LOOP
        IF r.problem = 'counts' THEN
            RETURN QUERY SELECT r.problem, r.ns, r.pid, '/_ATTR', format(
                'recorded %s entries, %s subdirectories, %s bytes; there are %s, %s, %s',
                r.entries, r.subdirectories, r.bytes, r.real_entries, r.real_subdirectories, r.real_bytes);
        ELSE
            RETURN QUERY
            SELECT r.problem, m.ns, m.pid, m.name,
                   CASE r.problem WHEN 'no_parent' THEN 'directory ' || r.pid || ' has no entry'
                                  WHEN 'removed_parent' THEN 'directory ' || r.pid || ' has a tombstone'
                                  ELSE 'its directory is in namespace ' || r.directory_ns END
              FROM mantle.meta m
             WHERE m.pid = r.pid
               AND CASE r.problem WHEN 'other_namespace' THEN m.ns <> r.directory_ns ELSE m.id IS NOT NULL END;
        END IF;
    END LOOP;
END $$;

--- analyst: check: namespaces against the entries of the super-root
CREATE FUNCTION mantle.check_roots() RETURNS TABLE (problem text, ns bigint, pid bigint, name text, detail text)
LANGUAGE plpgsql STABLE {as_caller} AS $$
#variable_conflict use_column
DECLARE
    v_ids bigint[];
    v_names text[];
BEGIN
    -- any order, the same for both
    SELECT array_agg(m.id), array_agg(m.name) INTO v_ids, v_names
      FROM mantle.meta m WHERE m.pid = 0 AND m.id IS NOT NULL;
    RETURN QUERY
    SELECT 'namespace_without_root', n.ns, 0::bigint, n.name || '/', 'no entry of that id in the super-root'
      FROM mantle.namespaces n
     WHERE NOT EXISTS (SELECT FROM unnest(v_ids, v_names) AS u(id, name) WHERE u.id = n.ns AND u.name = n.name || '/');
    RETURN QUERY
    SELECT 'root_without_namespace', u.id, 0::bigint, u.name, 'no row in mantle.namespaces'
      FROM unnest(v_ids, v_names) AS u(id, name) WHERE u.id <> ALL (ARRAY(SELECT n.ns FROM mantle.namespaces n));
END $$;

--- analyst: check: problems that the set of all directories shows
CREATE FUNCTION mantle.check_directories() RETURNS TABLE (problem text, ns bigint, pid bigint, name text, detail text)
LANGUAGE plpgsql STABLE {as_caller} AS $$
#variable_conflict use_column
DECLARE
    v_ids bigint[];
    v_pids bigint[];
    v_namespaces bigint[];
BEGIN
    -- any order, the same for all
    SELECT coalesce(array_agg(m.id), '{}'), coalesce(array_agg(m.pid), '{}'), coalesce(array_agg(m.ns), '{}')
      INTO v_ids, v_pids, v_namespaces FROM mantle.meta m WHERE m.explicit IS NOT NULL;
    RETURN QUERY SELECT * FROM mantle.check_places(v_ids, v_namespaces);
    v_ids := mantle.unreached_directories(v_ids, v_pids);
    IF v_ids <> '{}' THEN
        RETURN QUERY
        SELECT 'cycle', m.ns, m.pid, m.name, 'directory ' || m.id || ' is on a cycle or below one'
          FROM mantle.meta m WHERE m.explicit IS NOT NULL AND m.id = ANY (v_ids);
    END IF;
END $$;

--- analyst: check: changed permissions of directories, which their entries and their attribute records have (P56)
CREATE FUNCTION mantle.check_permissions() RETURNS TABLE (problem text, ns bigint, pid bigint, name text, detail text)
LANGUAGE plpgsql STABLE {as_caller} AS $$
#variable_conflict use_column
DECLARE
    v_ids bigint[];
    v_recorded text[];
BEGIN
    -- any order, the same for both
    SELECT array_agg(m.pid), array_agg(concat_ws(',', m.owner, m.grp, m.mode)) INTO v_ids, v_recorded
      FROM mantle.meta m
     WHERE m.name = '/_ATTR' AND m.ts = 0 AND m.mode IS NOT NULL AND m.removed IS NOT TRUE;
    RETURN QUERY EXECUTE $query$
        WITH e AS MATERIALIZED (
            SELECT m.ns, m.pid, m.name, m.id, concat_ws(',', m.owner, m.grp, m.mode) AS permission
              FROM mantle.meta m WHERE m.explicit IS NOT NULL AND m.id = ANY ($1))
        SELECT 'permission', e.ns, e.pid, e.name,
               'its entry has owner, group and mode ' || e.permission || ', its attribute record ' || r.permission
          FROM e JOIN unnest($1, $2) AS r(id, permission) ON r.id = e.id AND r.permission <> e.permission
        $query$ USING v_ids, v_recorded;
END $$;

--- gateway, monitor: check: bytes inside PostgreSQL against the objects that name them, in all namespaces
-- As the owner, because nobody else reads the bytes; so it tells no names. The check of those who are analysts only leaves this
-- out.
CREATE FUNCTION mantle.check_inline() RETURNS TABLE (problem text, ns bigint, pid bigint, name text, detail text)
LANGUAGE plpgsql STABLE {as_owner} SET enable_nestloop = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT 'inline_bytes', m.ns, m.pid, NULL::text,
           CASE WHEN i.id IS NULL THEN format('an entry names %s, which is not there', m.locator)
                ELSE format('%s has %s bytes, and its entry says %s', m.locator, octet_length(i.bytes), m.size) END
      FROM mantle.meta m LEFT JOIN mantle.inline i ON i.pid = m.pid AND i.id = mantle.inline_id(m.locator)
     WHERE m.locator {is_inline} AND octet_length(i.bytes) IS DISTINCT FROM m.size;
    RETURN QUERY
    SELECT 'inline_unused', NULL::bigint, i.pid, NULL::text, format('no entry names inline:%s', i.id)
      FROM mantle.inline i LEFT JOIN mantle.meta m ON m.pid = i.pid AND m.locator = 'inline:' || i.id
     WHERE m.pid IS NULL;
END $$;

--- analyst: Damage in the MetaTable: entries without a parent, ids with two entries, cycles, wrong counts
-- Nested loops are off, because with outdated statistics the planner would scan whole tables in them.
CREATE FUNCTION mantle."check"() RETURNS TABLE (problem text, ns bigint, pid bigint, name text, detail text)
LANGUAGE plpgsql STABLE {as_caller} SET enable_nestloop = off SET jit = off SET work_mem = '128MB' AS $$
BEGIN
    RETURN QUERY SELECT * FROM mantle.check_entries();
    RETURN QUERY SELECT * FROM mantle.check_roots();
    RETURN QUERY SELECT * FROM mantle.check_permissions();
    RETURN QUERY SELECT * FROM mantle.check_directories();
    IF has_function_privilege('mantle.check_inline()', 'EXECUTE') THEN
        RETURN QUERY SELECT * FROM mantle.check_inline();
    END IF;
END $$;
