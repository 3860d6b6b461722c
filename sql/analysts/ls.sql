--- analyst: Entries of a directory in name order (bytes); directories end in a slash
CREATE FUNCTION mantle.ls(ns text, path text)
RETURNS TABLE (name text, id bigint, owner int, grp int, mode text, size bigint, modified timestamptz)
LANGUAGE plpgsql STABLE {as_caller} AS $$
#variable_conflict use_column
DECLARE v_id bigint := (mantle.directory_at(ns, path)).id;
BEGIN
    RETURN QUERY
    SELECT m.name, m.id, m.owner, m.grp, mantle.octal(m.mode), m.size, coalesce(m.modified, m.created)
      FROM mantle.meta m WHERE m.pid = v_id AND (m.name < '/' OR m.name >= '0') AND m.ts = 0
     ORDER BY m.name;
END $$;
