--- analyst: Converts a shell pattern to one of LIKE: * and ? only, no classes ([a-z]) and no quoting
CREATE FUNCTION mantle.like_pattern(p_glob text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT replace(replace(replace(replace(replace(p_glob, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%'), '?', '_')
$$;

--- analyst: Everything below a directory: by name (* and ?), least size (objects only), time of the last change; NULL:
--- any
CREATE FUNCTION mantle.find(
    ns text, path text, pattern text DEFAULT NULL, min_size bigint DEFAULT NULL, newer_than timestamptz DEFAULT NULL)
RETURNS TABLE (key text, kind text, id bigint, size bigint, modified timestamptz, owner int, grp int, mode text)
LANGUAGE plpgsql STABLE {as_caller} SET work_mem = '64MB' SET random_page_cost = 1.1 AS $$
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
        'SELECT u.key || e.name, CASE WHEN e.explicit IS NULL THEN ''object'' ELSE ''directory'' END, e.id, e.size,
                coalesce(e.modified, e.created), e.owner, e.grp, mantle.octal(e.mode)
           FROM unnest($2, $3) AS u(id, key)
           JOIN (SELECT m.pid, m.name, m.explicit, m.id, m.size, m.modified, m.created, m.owner, m.grp, m.mode
                   FROM mantle.meta m
                  WHERE m.ns = $1 AND m.id IS NOT NULL AND ($4 IS NULL OR rtrim(m.name, ''/'') LIKE $4)
                    AND ($5 IS NULL OR m.size >= $5) AND ($6 IS NULL OR coalesce(m.modified, m.created) > $6)'
                     || CASE WHEN mantle.are_many(t.ids) THEN ' OFFSET 0' ELSE '' END || ') AS e ON e.pid = u.id
          WHERE u.key IS NOT NULL'
        USING v_start.ns, t.ids, t.keys, mantle.like_pattern(pattern), min_size, newer_than;
END $$;
