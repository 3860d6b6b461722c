-- A point in the WAL of every node, to which all of them may be restored (recovery_target_name; P43).
-- citus_create_restore_point() by itself keeps only the coordinator's own transactions away meanwhile: what a session on a
-- worker commits on two nodes might be before the point on one of them, and after it on the other. So whoever writes is waited
-- for, and waits, on every node: a lock on a distributed table is one on all of them, and what is prepared there holds it too.
CREATE FUNCTION mantle.create_restore_point(p_name text) RETURNS pg_lsn
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_lsn pg_lsn;
BEGIN
    IF NOT mantle.is_distributed() THEN
        RETURN pg_create_restore_point(p_name);
    END IF;
    LOCK TABLE mantle.meta IN SHARE MODE;
    EXECUTE 'SELECT citus_create_restore_point($1)' INTO v_lsn USING p_name;
    RETURN v_lsn;
END $$;
COMMENT ON FUNCTION mantle.create_restore_point IS
    'A point to restore to, on Citus of all nodes at once and at the coordinator: no change is on one side of it here and on the other there';
