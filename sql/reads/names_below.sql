--- gateway: Of each directory that has entries: the bytes of its longest name, and its directories with the bytes of theirs
CREATE FUNCTION mantle.names_below(p_pids bigint[])
RETURNS TABLE (pid bigint, longest int, directories bigint[], lengths int[])
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    RETURN QUERY
    -- any order, the same for both
    SELECT m.pid, max(octet_length(m.name)),
           coalesce(array_agg(m.id) FILTER (WHERE m.explicit IS NOT NULL), '{}'),
           coalesce(array_agg(octet_length(m.name)) FILTER (WHERE m.explicit IS NOT NULL), '{}')
      FROM mantle.meta m WHERE m.pid = ANY (p_pids) AND m.ts = 0 AND m.id IS NOT NULL GROUP BY m.pid;
END $$;
