-- Level by level, each a set query; all in the calling statement's snapshot.
CREATE FUNCTION mantle.du(ns text, path text, OUT objects bigint, OUT directories bigint, OUT bytes bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_path text[] := mantle.split_path(path);
    v_level bigint[];
    r record;
    l record;
BEGIN
    SELECT * INTO r FROM mantle.resolve_path(ns, v_path);
    IF r.depth IS DISTINCT FROM cardinality(v_path) THEN
        RETURN;
    END IF;
    objects := 0; directories := 0; bytes := 0;
    v_level := ARRAY[r.id];
    WHILE cardinality(v_level) > 0 LOOP
        SELECT count(*) FILTER (WHERE m.explicit IS NULL) AS objects, count(m.explicit) AS directories,
               coalesce(sum(m.size), 0) AS bytes, array_agg(m.id) FILTER (WHERE m.explicit IS NOT NULL) AS next
          INTO l FROM mantle.meta m WHERE m.pid = ANY (v_level) AND m.id IS NOT NULL;
        objects := objects + l.objects;
        directories := directories + l.directories;
        bytes := bytes + l.bytes;
        v_level := l.next;
    END LOOP;
END $$;
COMMENT ON FUNCTION mantle.du(text, text) IS
    'Objects, directories and bytes below a directory; NULLs when there is no such directory';
REVOKE ALL ON FUNCTION mantle.du(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.du(text, text) TO mantle_analyst, mantle_gateway;
