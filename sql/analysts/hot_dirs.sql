--- analyst: The n directories with the most changes: by delta records not folded yet, then by their last change
-- Delta records are appended when several calls change one directory at once, and folded a second later. So they show
-- the directories that are hot now, and attribute records show the last changes.
CREATE FUNCTION mantle.hot_dirs(n int DEFAULT 10)
RETURNS TABLE (namespace text, directory text, id bigint, deltas bigint, modified timestamptz)
LANGUAGE plpgsql STABLE {as_caller} SET work_mem = '64MB' AS $$
#variable_conflict use_column
DECLARE v_ns bigint;
BEGIN
    FOR v_ns, id, deltas, modified IN EXECUTE
        'SELECT min(a.ns), a.pid, count(*) FILTER (WHERE a.ts > 0), max(a.modified)
           FROM (SELECT m.pid, m.ns, m.ts, m.modified FROM mantle.meta m
                  WHERE m.name = ''/_ATTR'' AND m.ts = 0 AND m.removed IS NOT TRUE AND m.pid <> 0
                  UNION ALL
                 SELECT m.pid, m.ns, m.ts, m.modified FROM mantle.meta m WHERE m.ts > 0 AND m.pid <> 0) AS a
          GROUP BY a.pid ORDER BY 3 DESC, 4 DESC, a.pid LIMIT $1' USING n
    LOOP
        namespace := (SELECT s.name FROM mantle.namespaces s WHERE s.ns = v_ns);
        directory := mantle.path_of(namespace, id);
        -- Entries of a removed tree that is not emptied yet have no path.
        IF directory IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;
