--- gateway: The directories in directories, with their permissions
CREATE FUNCTION mantle.directories_below(p_pids bigint[]) RETURNS TABLE (id bigint, owner int, grp int, mode int)
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    RETURN QUERY
    SELECT m.id, m.owner, m.grp, m.mode FROM mantle.meta m WHERE m.pid = ANY (p_pids) AND m.explicit IS NOT NULL;
END $$;
