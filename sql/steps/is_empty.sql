-- Attribute and delta records (`/_ATTR`) lie between `/` and `0`.
CREATE FUNCTION mantle.is_empty(p_id bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM mantle.meta m WHERE m.pid = p_id AND m.name < '/')
       AND NOT EXISTS (SELECT FROM mantle.meta m WHERE m.pid = p_id AND m.name >= '0');
END $$;
COMMENT ON FUNCTION mantle.is_empty(bigint) IS 'Has a directory no entries?';
REVOKE ALL ON FUNCTION mantle.is_empty(bigint) FROM PUBLIC;
