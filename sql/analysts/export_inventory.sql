--- analyst: All keys below a directory in S3's order, as S3 lists them: objects, and explicit directories as dir/
-- Usage: COPY (SELECT * FROM mantle.export_inventory('ns', '')) TO STDOUT. Large results go to temporary files.
CREATE FUNCTION mantle.export_inventory(ns text, path text)
RETURNS TABLE (
    bucket text, key text, size bigint, etag text, modified timestamptz, content_type text, owner int, grp int,
    mode text, user_metadata jsonb, created timestamptz, id bigint, version bigint)
LANGUAGE plpgsql STABLE {as_caller} SET work_mem = '256MB' SET random_page_cost = 1.1 AS $$
#variable_conflict use_column
DECLARE
    v_start record;
    t record;
BEGIN
    SELECT * INTO v_start FROM mantle.directory_at(ns, path);
    IF v_start.id IS NULL THEN
        RETURN;
    END IF;
    SELECT * INTO t FROM mantle.keys_below(v_start.ns, v_start.id, v_start.key);
    RETURN QUERY EXECUTE
        'SELECT $4, u.key || e.name, coalesce(e.size, 0), e.etag, coalesce(e.modified, e.created), e.content_type,
                e.owner, e.grp, mantle.octal(e.mode), e.user_metadata, e.created, e.id, e.version
           FROM unnest($2, $3) AS u(id, key)
           JOIN (SELECT m.pid, m.name, m.size, m.etag, m.modified, m.created, m.content_type, m.owner, m.grp, m.mode,
                        m.user_metadata, m.id, m.version
                   FROM mantle.meta m WHERE m.ns = $1 AND m.id IS NOT NULL AND m.explicit IS DISTINCT FROM false'
                     || CASE WHEN mantle.are_many(t.ids) THEN ' OFFSET 0' ELSE '' END || ') AS e ON e.pid = u.id
          WHERE u.key IS NOT NULL ORDER BY (u.key || e.name) COLLATE "C"' USING v_start.ns, t.ids, t.keys, ns;
END $$;
