-- Citus: distributes the MetaTable by pid and, colocated, the tables that are written with an entry. Small tables are
-- on every node. Functions that do their part in one directory are registered with Citus, which runs them on the
-- directory's node.

--- Citus: the tables, with the column that decides where a row is; NULL: on every node
CREATE FUNCTION mantle.distributed_tables() RETURNS TABLE (name text, by_column text) LANGUAGE sql IMMUTABLE AS $$
    VALUES ('meta', 'pid'), ('requests', 'pid'), ('inline', 'pid'), ('prune_queue', 'pid'), ('operations', 'pid'),
           ('rename_attempts', 'ns'), ('uploads', 'id'), ('extents', 'upload'), ('namespaces', NULL),
           ('namespace_grants', NULL), ('id_blocks', NULL), ('index_groups', NULL), ('prepare_keys', NULL)
$$;

--- Citus: functions that run on the node of the directory that their first argument names
CREATE FUNCTION mantle.delegated_functions() RETURNS SETOF regprocedure LANGUAGE sql STABLE AS $$
    SELECT p.oid::regprocedure FROM pg_proc p
     WHERE p.pronamespace = 'mantle'::regnamespace AND p.prokind = 'f'
       AND p.proname LIKE '%\_delegated' AND p.proargtypes[0] = 'bigint'::regtype
$$;

--- Citus: registers the functions that run on the node of their first argument; also after an upgrade with new ones
CREATE FUNCTION mantle.delegate_functions() RETURNS void LANGUAGE plpgsql VOLATILE {as_caller} AS $$
BEGIN
    PERFORM create_distributed_function(
                f, distribution_arg_name => (SELECT p.proargnames[1] FROM pg_proc p WHERE p.oid = f),
                colocate_with => 'mantle.meta', force_delegation => true)
       FROM mantle.delegated_functions() AS f;
END $$;

--- Citus: adds the directory to the key of the request ids
-- A row is where the change was. A request id is then unique only in its directory; mantle.replay reads every node. The
-- directory is last, because a retry does not know it.
CREATE FUNCTION mantle.rekey_requests() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    ALTER TABLE mantle.requests DROP CONSTRAINT requests_pkey, ADD PRIMARY KEY (ns, principal, request_id, pid);
    COMMENT ON INDEX mantle.requests_pkey IS 'One answer a request id in a directory';
END $$;

--- Distributes the tables over a Citus cluster. Call it once, on the coordinator, while nothing is written
-- One copy of each shard: PostgreSQL replicates. Copies that Citus writes would each have a change stream.
CREATE FUNCTION mantle.distribute() RETURNS void
LANGUAGE plpgsql VOLATILE {as_caller} SET citus.shard_replication_factor = 1 AS $$
DECLARE
    t record;
    v_bad text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'citus') THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'Citus is not installed in this database', HINT = 'CREATE EXTENSION citus, on every node.';
    ELSIF mantle.is_distributed() THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'the MetaTable is distributed already';
    END IF;
    SELECT string_agg(format('%s:%s %s', r.nodename, r.nodeport, r.result), '; ' ORDER BY r.nodename, r.nodeport)
      INTO v_bad
      FROM run_command_on_workers(
               $c$ SELECT CASE WHEN EXISTS (SELECT FROM mantle.meta) THEN 'holds entries of its own' END $c$) AS r
     WHERE r.result <> '' OR NOT r.success;
    IF v_bad IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'a worker is not ready: ' || v_bad, HINT = 'CREATE EXTENSION mantle, on every node.';
    END IF;
    -- In the order in which changes open them.
    LOCK TABLE mantle.meta, mantle.requests;
    PERFORM mantle.rekey_requests();
    PERFORM run_command_on_workers('SELECT mantle.rekey_requests()');
    FOR t IN SELECT * FROM mantle.distributed_tables() AS d LOOP
        IF t.by_column IS NULL THEN
            PERFORM create_reference_table(format('mantle.%I', t.name)::regclass);
        ELSE
            PERFORM create_distributed_table(
                format('mantle.%I', t.name)::regclass, t.by_column,
                colocate_with => CASE t.name WHEN 'meta' THEN 'none' ELSE 'mantle.meta' END);
        END IF;
        PERFORM truncate_local_data_after_distributing_table(format('mantle.%I', t.name)::regclass);
    END LOOP;
    -- A view is read as its owner on the node that receives the query, and as the caller on the others.
    GRANT SELECT ON mantle.meta TO mantle_index;
    PERFORM mantle.delegate_functions();
END $$;
