\ir setup.psql
BEGIN;
SELECT plan(22);

SELECT is((SELECT extversion FROM pg_extension WHERE extname = 'mantle'),
          (SELECT default_version FROM pg_available_extensions WHERE name = 'mantle'),
              'the version that the server has');
SELECT is_empty($$
    SELECT p.oid::regprocedure FROM pg_proc p
     WHERE p.pronamespace = 'mantle'::regnamespace AND has_function_privilege('public', p.oid, 'EXECUTE')
$$, 'PUBLIC may execute nothing');
SELECT is_empty($$
    SELECT p.oid::regprocedure FROM pg_proc p
     WHERE p.pronamespace = 'mantle'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL
$$, 'every function has a comment');
SELECT is_empty($$
    SELECT c.oid::regclass FROM pg_class c
     WHERE c.relnamespace = 'mantle'::regnamespace AND c.relkind IN ('r', 'v') AND obj_description(c.oid, 'pg_class')
         IS NULL
$$, 'every table and view has a comment');
SELECT is(col_description('mantle.meta'::regclass, 3), '0, or > 0 for a delta record',
    'a column has its own comment');
-- Only the extension's own tables; shards belong to Citus.
SELECT is_empty($$
    WITH own AS (SELECT d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'mantle'
                  WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'e')
    SELECT i.indexrelid::regclass::text FROM pg_index i JOIN own ON own.objid = i.indrelid
        WHERE obj_description(i.indexrelid, 'pg_class') IS NULL
    UNION ALL SELECT p.polname || ' on ' || p.polrelid::regclass FROM pg_policy p JOIN own ON own.objid = p.polrelid
               WHERE obj_description(p.oid, 'pg_policy') IS NULL
    UNION ALL SELECT c.oid::regclass::text FROM pg_class c JOIN own ON own.objid = c.oid
               WHERE c.relkind IN ('S', 'c') AND coalesce(obj_description(c.oid, 'pg_class'),
                   obj_description(c.reltype, 'pg_type')) IS NULL
    UNION ALL SELECT t.typname FROM pg_type t JOIN pg_depend d ON d.objid = t.oid AND d.classid = 'pg_type'::regclass
        AND d.deptype = 'e'
                JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'mantle'
                    WHERE obj_description(t.oid, 'pg_type') IS NULL AND t.typcategory <> 'A'
                      -- From 17 on the types of tables' and views' rows are members too.
                      AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = t.typrelid AND c.relkind <> 'c')
    UNION ALL SELECT p.pubname FROM pg_publication p WHERE p.pubname = 'mantle_stream'
        AND obj_description(p.oid, 'pg_publication') IS NULL
    UNION ALL SELECT n.nspname FROM pg_namespace n WHERE n.nspname = 'mantle'
        AND obj_description(n.oid, 'pg_namespace') IS NULL
$$, 'every index, policy, sequence and type, the publication and the schema have one');
SELECT is_empty($$
    SELECT p.oid::regprocedure FROM pg_proc p
     WHERE p.pronamespace = 'mantle'::regnamespace AND p.prosecdef
       AND NOT ('search_path=pg_catalog, pg_temp' = ANY (coalesce(p.proconfig, '{}')))
$$, 'every security definer function fixes its search_path');
SELECT is_empty($$
    SELECT p.oid::regprocedure FROM pg_proc p CROSS JOIN unnest(ARRAY['mantle_gateway', 'mantle_index']) AS r
     WHERE p.pronamespace = 'mantle'::regnamespace AND has_function_privilege(r, p.oid, 'EXECUTE') AND NOT p.prosecdef
       AND p.proname <> 'mutation_fault_code' -- asks about the caller's session, and reads no table
$$, 'services execute only what runs as the owner');
SELECT is_empty($$
    SELECT p.oid::regprocedure FROM pg_proc p
     WHERE p.pronamespace = 'mantle'::regnamespace AND has_function_privilege('mantle_analyst', p.oid, 'EXECUTE')
         AND p.prosecdef
$$, 'analysts execute nothing that runs as the owner: row-level security holds');
SELECT is_empty($$
    SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
     WHERE p.pronamespace = 'mantle'::regnamespace AND has_function_privilege('mantle_analyst', p.oid, 'EXECUTE')
       AND p.provolatile = 'v'
$$, 'analysts execute nothing volatile: no change, and one snapshot');
-- mkdir, put_object and the part of compact that latches bound each wait themselves. The others of the list change
-- nothing.
SELECT is_empty($$
    SELECT p.oid::regprocedure FROM pg_proc p
     CROSS JOIN unnest(ARRAY['mantle_gateway', 'mantle_importer', 'mantle_index']) AS r
     WHERE p.pronamespace = 'mantle'::regnamespace AND has_function_privilege(r, p.oid, 'EXECUTE') AND p.provolatile = 'v'
       AND array_to_string(coalesce(p.proconfig, '{}'), ' ') NOT LIKE '%lock_timeout=%'
       AND p.proname <> ALL (string_to_array('mkdir put_object compact end_stale_session lease lineage inline_usage '
               'mutation_fault_code open_transactions segment_locators server_problems standby_flush unused_locators volume_nodes '
               'worker_problems', ' '))
$$, 'a change that a service makes waits for a lock for some time only (P18)');
SELECT is_empty($$
    SELECT c.oid::regclass FROM pg_class c
     WHERE c.relnamespace = 'mantle'::regnamespace AND c.relkind = 'v' AND has_table_privilege('mantle_analyst', c.oid,
         'SELECT')
       AND NOT ('security_invoker=true' = ANY (coalesce(c.reloptions, '{}')))
$$, 'analysts read no view as the owner');
SELECT set_eq($$
    SELECT c.oid::regclass::text FROM pg_class c
     WHERE c.relnamespace = 'mantle'::regnamespace AND c.relkind = 'r' AND has_table_privilege('mantle_analyst', c.oid,
         'SELECT')
       AND NOT c.relrowsecurity
$$, ARRAY['mantle.id_blocks', 'mantle.index_groups'],
    'these tables hold nothing of a namespace; all others that analysts read have policies');
SELECT is_empty($$
    SELECT p.polname FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
     WHERE c.relnamespace = 'mantle'::regnamespace AND pg_get_expr(p.polqual, p.polrelid) LIKE '%SELECT%'
$$, 'no policy has a subquery, which Citus refuses');
SELECT is_empty($$
    SELECT c.oid::regclass FROM pg_class c CROSS JOIN unnest(ARRAY['mantle_gateway', 'mantle_index', 'mantle_analyst'])
        AS r
     WHERE c.relnamespace = 'mantle'::regnamespace AND c.relkind = 'r'
       AND has_table_privilege(r, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
$$, 'no role writes a table');
SELECT set_eq($$
    SELECT c.oid::regclass::text FROM pg_class c
     WHERE c.relnamespace = 'mantle'::regnamespace AND c.relkind = 'r' AND has_table_privilege('mantle_index', c.oid,
         'SELECT')
$$, CASE WHEN mantle.is_distributed() THEN ARRAY['mantle.index_groups', 'mantle.meta'] ELSE
    ARRAY['mantle.index_groups'] END,
    'the index reads one table and the view; on Citus, where a view''s owner does not count, also the rows below it');
SELECT ok(has_table_privilege('mantle_index', 'mantle.directories', 'SELECT'),
    'the index reads the view of directories');
SELECT set_eq($$
    SELECT c.oid::regclass::text FROM pg_class c
     WHERE c.relnamespace = 'mantle'::regnamespace AND c.relkind = 'r'
       AND c.oid <> ALL (ARRAY['mantle.prepare_keys', 'mantle.index_replica_reports', 'mantle.admitted_segments',
                               'mantle.freed']::regclass[])
$$, $$
    SELECT t::regclass::text FROM pg_extension e, unnest(e.extconfig) AS t JOIN pg_class c ON c.oid = t
        AND c.relkind = 'r'
     WHERE e.extname = 'mantle'
$$, 'pg_dump keeps the data of every table but of keys, reports, and what a node admits and has freed');
SELECT ok((SELECT reloptions @> ARRAY['autovacuum_vacuum_scale_factor=0', 'autovacuum_vacuum_threshold=5000',
                                      'autovacuum_vacuum_cost_delay=0']
             FROM pg_class WHERE oid = 'mantle.meta'::regclass), 'a hot delta table is vacuumed in time');
SELECT is_empty($$
    SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'mantle'::regnamespace AND c.relkind = 'r' AND c.relpersistence = 'p'
       AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
$$, 'every table has a primary key: a publication FOR ALL TABLES refuses changes of others');
SELECT ok((SELECT NOT puballtables FROM pg_publication WHERE pubname = 'mantle_stream')
          AND NOT EXISTS (SELECT FROM pg_publication_tables WHERE pubname = 'mantle_stream'),
              'the publication is empty');
SELECT ok(EXISTS (SELECT FROM pg_depend d JOIN pg_publication p ON p.oid = d.objid JOIN pg_extension e ON e.oid
    = d.refobjid
                   WHERE d.classid = 'pg_publication'::regclass AND d.deptype = 'e' AND p.pubname = 'mantle_stream'
                       AND e.extname = 'mantle'),
          'and a member of the extension: a dump leaves it to CREATE EXTENSION');
SELECT * FROM finish();
ROLLBACK;
