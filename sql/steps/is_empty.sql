-- Attribute and delta records (`/_ATTR`) lie between `/` and `0`. The first in order, not EXISTS: where most entries are in few
-- directories, the planner takes it for sure to find one soon in any, and reads the whole table of one that is empty.
CREATE FUNCTION mantle.is_empty(p_id bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT m.name FROM mantle.meta m WHERE m.pid = p_id AND m.name < '/' ORDER BY m.name LIMIT 1) IS NULL
       AND (SELECT m.name FROM mantle.meta m WHERE m.pid = p_id AND m.name >= '0' ORDER BY m.name LIMIT 1) IS NULL;
END $$;
COMMENT ON FUNCTION mantle.is_empty IS 'Has a directory no entries?';
