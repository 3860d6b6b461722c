--- analyst: The largest directories below one (and itself) by their own content: bytes, objects or entries
-- From attribute and delta records, without reading objects. Builds keys only for the few rows of the result.
CREATE FUNCTION mantle.top_dirs(ns text, path text, n int DEFAULT 10, "by" text DEFAULT 'bytes')
RETURNS TABLE (directory text, id bigint, entries bigint, objects bigint, bytes bigint)
LANGUAGE plpgsql STABLE {as_caller} SET work_mem = '64MB' AS $$
#variable_conflict use_column
DECLARE
    v_start record;
    v_ids bigint[];
    t record;
BEGIN
    IF ("by" IN ('bytes', 'objects', 'entries')) IS NOT TRUE THEN
        RAISE EXCEPTION 'by must be bytes, objects or entries, not "%"', "by" USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO v_start FROM mantle.directory_at(ns, path);
    IF v_start.id IS NULL THEN
        RETURN;
    END IF;
    SELECT * INTO t FROM mantle.rows_below(v_start.ns, ARRAY[v_start.id], ARRAY[1]);
    v_ids := ARRAY(SELECT u.id FROM unnest(t.ids, t.rows) AS u(id, row) WHERE u.row IS NOT NULL);
    FOR id, entries, objects, bytes
        IN SELECT v_ids[s.n], s.objects + s.directories, s.objects, s.bytes
          FROM mantle.sums_by_row(ARRAY[v_start.ns], v_ids, ARRAY(SELECT generate_series(1, cardinality(v_ids)))) AS s
         CROSS JOIN LATERAL (SELECT CASE "by" WHEN 'bytes' THEN s.bytes WHEN 'objects' THEN s.objects
                                              ELSE s.objects + s.directories END) AS o(size)
         WHERE o.size > 0 ORDER BY o.size DESC, s.n LIMIT top_dirs.n
    LOOP
        directory := mantle.path_of(ns, id);
        RETURN NEXT;
    END LOOP;
END $$;
