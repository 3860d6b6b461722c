--- gateway: mantle.du for the gateway; it runs as the owner, while analysts see only what was granted to them
CREATE FUNCTION mantle.usage(p_ns_name text, p_path text, p_depth int)
RETURNS TABLE (
    directory text, level int, objects bigint, directories bigint, bytes bigint, owner int, grp int, mode int)
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    RETURN QUERY SELECT * FROM mantle.du(p_ns_name, p_path, p_depth);
END $$;
