--- A point to restore to (recovery_target_name); on Citus of all nodes at once, called on the coordinator: no change is
--- before it on one node and after it on another
-- citus_create_restore_point() alone blocks only the coordinator's own transactions. A worker's session that commits on
-- two nodes might commit before the point on one and after it on the other. So this waits for all writers on every node
-- and blocks new ones (P43): a distributed table's lock is taken on all nodes, and prepared transactions hold it too.
-- While it waits, every change waits too, and gives up after two seconds. So it gives up as soon (55P03), and is called
-- again: a forgotten transaction, or a long VACUUM, delays it and nobody else.
CREATE FUNCTION mantle.create_restore_point(p_name text) RETURNS pg_lsn
LANGUAGE plpgsql VOLATILE {as_caller} SET lock_timeout = '2s' SET citus.propagate_set_commands = 'local' AS $$
DECLARE v_lsn pg_lsn;
BEGIN
    IF NOT mantle.is_distributed() THEN
        RETURN pg_create_restore_point(p_name);
    END IF;
    -- Citus sends this statement to the other nodes, and not the setting of the function.
    SET LOCAL lock_timeout = '2s';
    LOCK TABLE mantle.meta IN SHARE MODE;
    EXECUTE 'SELECT citus_create_restore_point($1)' INTO v_lsn USING p_name;
    RETURN v_lsn;
END $$;
