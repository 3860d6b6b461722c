--- The facts of one node; check_cluster asks every node for them
CREATE FUNCTION mantle.node_facts() RETURNS jsonb LANGUAGE plpgsql VOLATILE {as_caller} AS $$
BEGIN
    RETURN jsonb_build_object(
        'version', (SELECT e.extversion FROM pg_extension e WHERE e.extname = 'mantle'),
        'worker', (SELECT coalesce(jsonb_agg(w ORDER BY w), '[]') FROM mantle.worker_problems() AS w),
        'server', (SELECT coalesce(jsonb_agg(s ORDER BY s.problem, s.culprit), '[]') FROM mantle.server_problems() AS s),
        'wal_level', current_setting('wal_level'),
        'prepared', current_setting('max_prepared_transactions')::int,
        'locks', current_setting('max_locks_per_transaction')::int,
        'commit', current_setting('synchronous_commit'),
        'fsync', current_setting('fsync'),
        'full_pages', current_setting('full_page_writes'),
        -- On Citus a table's shards are in the same schema. mantle.index_replica_reports is unlogged on purpose.
        'unsafe_tables', (
            SELECT coalesce(jsonb_agg(c.relname ORDER BY c.relname), '[]')
              FROM pg_class c LEFT JOIN pg_am a ON a.oid = c.relam
             WHERE c.relnamespace = 'mantle'::regnamespace AND c.relkind = 'r' AND c.relname <> 'index_replica_reports'
               AND (c.relpersistence <> 'p' OR a.amname <> 'heap')),
        'synchronous', current_setting('synchronous_standby_names') <> '',
        'followed', EXISTS (SELECT FROM pg_stat_replication r LEFT JOIN pg_replication_slots s ON s.active_pid = r.pid
                             WHERE r.state = 'streaming' AND s.slot_type IS DISTINCT FROM 'logical'),
        'standby', (mantle.standby_flush()).flushed IS NOT NULL,
        -- Patroni names the cluster on the command line, and other configuration does not.
        'managed', (SELECT s.source = 'command line' FROM pg_settings s WHERE s.name = 'cluster_name'),
        'primary', NOT pg_is_in_recovery(),
        'wal_keep', current_setting('max_slot_wal_keep_size'),
        'publication', EXISTS (SELECT FROM pg_publication p WHERE p.pubname = 'mantle_stream'),
        'emit_is_public', (
            SELECT bool_or(has_function_privilege('public', p.oid, 'EXECUTE')) FROM pg_proc p
             WHERE p.proname = 'pg_logical_emit_message' AND p.pronamespace = 'pg_catalog'::regnamespace),
        'lost', (SELECT coalesce(jsonb_agg(l ORDER BY l), '[]') FROM mantle.lost_by_upgrade() AS l),
        'slots', (SELECT coalesce(jsonb_object_agg(s.slot_name, s.wal_status), '{}') FROM pg_replication_slots s
                   WHERE s.database = current_database()),
        'unread_slots', (SELECT coalesce(jsonb_agg(s.slot_name ORDER BY s.slot_name), '[]') FROM pg_replication_slots s
                          WHERE s.database = current_database() AND NOT s.active),
        'other_slots', (SELECT coalesce(jsonb_object_agg(s.slot_name, coalesce(s.database, '')), '{}')
                          FROM pg_replication_slots s WHERE s.database IS DISTINCT FROM current_database()),
        -- The same condition as in mantle.standby_flush, which an index reads.
        'blind_owner', (SELECT p.proowner::regrole::text FROM pg_proc p WHERE p.oid = 'mantle.standby_flush'::regproc
                           AND NOT pg_has_role(p.proowner, 'pg_read_all_stats', 'USAGE')),
        'settings', (SELECT coalesce(jsonb_agg(s.problem ORDER BY s.problem), '[]') FROM mantle.setting_problems() AS s),
        'index_replicas', (SELECT coalesce(jsonb_agg(r ORDER BY r), '[]') FROM mantle.reported_index_replicas() AS r),
        'roles', (SELECT coalesce(jsonb_agg(r.rolname ORDER BY r.rolname), '[]') FROM pg_roles r
                   WHERE r.rolname IN (
                       'mantle_gateway', 'mantle_importer', 'mantle_index', 'mantle_analyst', 'mantle_monitor')),
        'hot_shards', (
            SELECT count(*) FROM pg_class c WHERE c.relname ~ '^meta_\d+$' AND c.relnamespace = 'mantle'::regnamespace
               AND NOT coalesce(c.reloptions, '{}') @> ARRAY['autovacuum_vacuum_scale_factor=0']));
END $$;

--- The problems that a node's facts show, for check_cluster; with NULL slots, slots are not checked
CREATE FUNCTION mantle.node_problems(f jsonb, p_version text, p_slots text[]) RETURNS TABLE (problem text, detail text)
LANGUAGE sql IMMUTABLE AS $$
    SELECT p.problem, p.detail FROM (VALUES
        (f->>'version' IS NULL, 'extension', 'mantle is not installed in this database: CREATE EXTENSION mantle'),
        (f->>'version' <> p_version, 'version', 'mantle is ' || (f->>'version') || ' here, ' || p_version
            || ' on the coordinator: ALTER EXTENSION mantle UPDATE'),
        (f->>'wal_level' <> 'logical', 'wal_level', 'is ' || (f->>'wal_level') || ', must be logical'),
        ((f->>'prepared')::int = 0, 'max_prepared_transactions', 'is 0: renames across nodes fail'),
        ((f->>'locks')::int < {BATCH_LATCHES_MAX}, 'max_locks_per_transaction', 'is ' || (f->>'locks')
            || ': a batch takes up to {BATCH_LATCHES_MAX} latches'),
        -- The same condition as in extension/src/steps/batch.rs.
        (f->>'commit' = 'off' OR f->>'commit' IN ('local', 'remote_write') AND (f->>'synchronous')::boolean,
         'synchronous_commit', 'is ' || (f->>'commit') || CASE WHEN f->>'commit' <> 'off'
             THEN ' with a synchronous standby' ELSE '' END || ': mutations are refused ({weak_commit})'),
        (f->>'fsync' = 'off', 'fsync', 'is off: a crash of the machine loses acknowledged changes, and may damage the rest'),
        (f->>'full_pages' = 'off', 'full_page_writes',
         'is off: a crash of the machine may leave half a page, unless the file system prevents it'),
        (jsonb_array_length(f->'unsafe_tables') > 0, 'tables', (f->'unsafe_tables')::text
            || ' are not logged, or not stored by the access method heap: a crash or a failover loses them'),
        ((f->>'followed')::boolean AND NOT (f->>'synchronous')::boolean, 'synchronous_standby_names',
         'is empty, though a standby follows: a failover loses acknowledged changes, of which other nodes keep parts'),
        ((f->>'primary')::boolean AND (f->>'synchronous')::boolean AND NOT (f->>'standby')::boolean, 'standby',
         'no synchronous standby is connected: commits wait for one'),
        ((f->>'primary')::boolean AND (f->>'managed')::boolean AND NOT (f->>'synchronous')::boolean
            AND NOT (f->>'followed')::boolean, 'standby',
         'none follows this server: acknowledged changes are on one machine'),
        (f->>'wal_keep' = '-1', 'max_slot_wal_keep_size', 'is unlimited: a slot that nobody reads fills the disk'),
        (NOT (f->>'publication')::boolean, 'publication', 'mantle_stream is missing'),
        ((f->>'emit_is_public')::boolean, 'privileges',
            'PUBLIC may call pg_logical_emit_message, and so forge the change stream'),
        (f->>'blind_owner' IS NOT NULL, 'owner', (f->>'blind_owner') || ' owns the extension and does not see the '
            'positions of standbys, for which an index waits: GRANT pg_monitor TO ' || (f->>'blind_owner')),
        ((f->>'hot_shards')::int > 0, 'autovacuum',
            (f->>'hot_shards') || ' shards of mantle.meta lack the table''s storage parameters'),
        (jsonb_array_length(f->'roles') < 5, 'roles', 'only ' || (f->'roles')::text || ' are there')
    ) AS p(is_so, problem, detail) WHERE p.is_so
    UNION ALL
    SELECT 'slot', s || CASE
               WHEN f->'other_slots' ? s THEN ' belongs to ' || coalesce('database ' || nullif(f->'other_slots'->>s, ''),
                   'a standby') || ': give the index group another slot by mantle.rename_index_slot'
               WHEN NOT f->'slots' ? s THEN ' is missing: no index reads this node''s changes'
               WHEN f->'slots'->>s = 'lost' THEN ' has lost its position: the index must be rebuilt'
               WHEN f->'unread_slots' ? s THEN ' has no reader: changes of directories here are not acknowledged'
               ELSE ' is about to lose its position: its reader is too far behind' END
      FROM unnest(p_slots) AS s
     WHERE NOT f->'slots' ? s OR f->'slots'->>s IN ('lost', 'unreserved') OR f->'unread_slots' ? s
    UNION ALL
    SELECT 'worker', w FROM jsonb_array_elements_text(f->'worker') AS w
    UNION ALL
    SELECT 'pg_upgrade', l || ' is not as the extension made it, and the worker, which restores it, has not done so: '
           'SELECT mantle.restore_after_upgrade()' FROM jsonb_array_elements_text(f->'lost') AS l
    UNION ALL
    SELECT 'settings', s FROM jsonb_array_elements_text(f->'settings') AS s
    UNION ALL
    SELECT s->>'problem', (s->>'culprit') || ': ' || (s->>'detail') FROM jsonb_array_elements(f->'server') AS s
    UNION ALL
    SELECT 'index_replica', r FROM jsonb_array_elements_text(f->'index_replicas') AS r
$$;

--- The problems of shards, for check_cluster, with Citus
-- The fast path writes to shards directly only if one lock keeps out all other writers of the shard.
CREATE FUNCTION mantle.shard_problems() RETURNS TABLE (problem text, detail text)
LANGUAGE plpgsql STABLE {as_caller} AS $$
BEGIN
    RETURN QUERY
    SELECT 'copies', format('%s shards of mantle.%s have several copies, and each its change stream', count(*), s.name)
      FROM (SELECT t.name, h.shardid FROM mantle.distributed_tables() AS t
              JOIN pg_dist_shard h ON h.logicalrelid = format('mantle.%I', t.name)::regclass
              JOIN pg_dist_placement p ON p.shardid = h.shardid
             WHERE t.by_column IS NOT NULL GROUP BY t.name, h.shardid HAVING count(*) > 1) AS s
     GROUP BY s.name;
    RETURN QUERY
    SELECT 'colocation', format('mantle.%s does not go where mantle.meta goes', t.name)
      FROM mantle.distributed_tables() AS t
      JOIN pg_dist_partition m ON m.logicalrelid = 'mantle.meta'::regclass AND t.by_column IS NOT NULL
     WHERE NOT EXISTS (SELECT FROM pg_dist_partition d WHERE d.logicalrelid = format('mantle.%I', t.name)::regclass
                                                         AND d.colocationid = m.colocationid);
END $$;

--- monitor: What is missing on which node: extension, worker, publication, slots, settings, privileges; and namespaces
--- that everybody may look into. No row: nothing is missing
CREATE FUNCTION mantle.check_cluster() RETURNS TABLE (node text, problem text, detail text)
LANGUAGE plpgsql VOLATILE {as_owner} AS $$
DECLARE
    v_version text := (SELECT e.extversion FROM pg_extension e WHERE e.extname = 'mantle');
    v_slots text[] := ARRAY(SELECT g.slot_name FROM mantle.index_groups g ORDER BY g.slot_name);
    n record;
BEGIN
    RETURN QUERY
    SELECT CASE WHEN mantle.is_distributed() THEN 'cluster' ELSE 'this node' END, 'prepare_keys',
           format('index group %s has no key: directories are renamed unproven. When no older IndexNode and '
                  'gateway runs: SELECT mantle.make_prepare_keys()', g.index_group)
      FROM mantle.index_groups g
     WHERE NOT EXISTS (SELECT FROM mantle.prepare_keys k WHERE k.index_group = g.index_group) ORDER BY g.index_group;
    RETURN QUERY
    SELECT CASE WHEN mantle.is_distributed() THEN 'cluster' ELSE 'this node' END, 'open_namespace',
           format('%s: everybody who is known to a gateway may look into it (mode %s). Its owner can close it: '
                  'PATCH /v1/ns/%1$s/entries/ {"mode": "0700"}', left(m.name, -1), mantle.octal(m.mode))
      FROM mantle.meta m WHERE m.pid = 0 AND m.id IS NOT NULL AND m.mode & 1 <> 0 ORDER BY m.name;
    IF NOT EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'citus') THEN
        RETURN QUERY SELECT 'this node', p.problem, p.detail
                       FROM mantle.node_problems(mantle.node_facts(), v_version, v_slots) AS p;
        RETURN;
    END IF;
    IF NOT mantle.is_distributed() THEN
        RETURN QUERY VALUES ('cluster', 'distribution', 'the MetaTable is not distributed: SELECT mantle.distribute()');
    END IF;
    -- An index reads the nodes that have directories or may get some.
    FOR n IN SELECT format('%s:%s', d.nodename, d.nodeport) AS name, r.success, r.result,
                    CASE WHEN d.groupid IN (SELECT i.source FROM mantle.index_sources() AS i) THEN v_slots END AS slots
               FROM run_command_on_all_nodes('SELECT mantle.node_facts()') AS r
               JOIN pg_dist_node d ON d.nodeid = r.nodeid ORDER BY 1
    LOOP
        IF n.success THEN
            RETURN QUERY SELECT n.name, p.problem, p.detail
                           FROM mantle.node_problems(n.result::jsonb, v_version, n.slots) AS p;
        ELSE
            -- Only where the extension is missing does the message name its schema.
            RETURN QUERY VALUES (
                n.name, CASE WHEN n.result ~ 'schema "mantle"|mantle\.node_facts' THEN 'extension' ELSE 'node' END,
                n.result);
        END IF;
    END LOOP;
    RETURN QUERY
    SELECT format('%s:%s', d.nodename, d.nodeport), 'node',
           CASE WHEN d.isactive THEN 'its copy of Citus'' tables is old' ELSE 'it is disabled in pg_dist_node' END
      FROM pg_dist_node d
     WHERE d.noderole = 'primary' AND NOT (d.isactive AND d.hasmetadata AND d.metadatasynced) ORDER BY 1;
    RETURN QUERY SELECT 'cluster', p.problem, p.detail FROM mantle.shard_problems() AS p;
    RETURN QUERY
    SELECT 'cluster', 'function', f::text || ' is not known to Citus: SELECT mantle.delegate_functions()'
      FROM mantle.delegated_functions() AS f
     WHERE mantle.is_distributed() AND NOT EXISTS (
               SELECT FROM pg_dist_object o
                WHERE o.classid = 'pg_proc'::regclass AND o.objid = f AND o.force_delegation);
END $$;
