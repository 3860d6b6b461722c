--- gateway: Bytes inside PostgreSQL that an object of a directory names; no row if they are not there (any more)
-- mantle.stat_local can return them with the entry; this function is for entries that were read without them.
CREATE FUNCTION mantle.inline_bytes(p_pid bigint, p_locator text) RETURNS SETOF bytea
LANGUAGE plpgsql STABLE {as_owner} AS $$
DECLARE v_id bigint := mantle.inline_id(p_locator);
BEGIN
    RETURN QUERY SELECT i.bytes FROM mantle.inline i WHERE i.pid = p_pid AND i.id = v_id;
END $$;

--- gateway, monitor: How many bytes the small objects inside PostgreSQL take on disk, indexes included
CREATE FUNCTION mantle.inline_usage() RETURNS bigint LANGUAGE plpgsql VOLATILE {as_owner} AS $$
DECLARE v_bytes bigint;
BEGIN
    IF mantle.is_distributed() THEN
        -- Only Citus has the function.
        EXECUTE 'SELECT citus_total_relation_size(''mantle.inline'')' INTO v_bytes;
    ELSE
        v_bytes := pg_total_relation_size('mantle.inline');
    END IF;
    RETURN v_bytes;
END $$;
