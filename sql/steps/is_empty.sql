--- Whether a directory has no entries
-- Attribute and delta records (`/_ATTR`) lie between `/` and `0`. Reads the first entry in order instead of EXISTS: if
-- most entries are in few directories, the planner expects to find one soon in any directory, and scans the whole
-- table for an empty one.
CREATE FUNCTION mantle.is_empty(p_id bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT m.name FROM mantle.meta m WHERE m.pid = p_id AND m.name < '/' ORDER BY m.name LIMIT 1) IS NULL
       AND (SELECT m.name FROM mantle.meta m WHERE m.pid = p_id AND m.name >= '0' ORDER BY m.name LIMIT 1) IS NULL;
END $$;
