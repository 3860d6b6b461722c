--- gateway: Objects, directories and bytes below a directory, and below each directory in it down to a depth; no row
--- if the directory does not exist
-- mantle.du for the gateway. It runs as the owner; analysts see only what was granted to them.
CREATE FUNCTION mantle.usage(p_ns_name text, p_path text, p_depth int)
RETURNS TABLE (
    directory text, level int, objects bigint, directories bigint, bytes bigint, owner int, grp int, mode int)
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    RETURN QUERY SELECT * FROM mantle.du(p_ns_name, p_path, p_depth);
END $$;
