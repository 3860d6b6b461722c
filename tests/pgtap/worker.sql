-- The background worker: compacts and prunes by itself, waits for a database's extension, stops when told.
\ir setup.psql
SELECT plan(10);
SELECT current_setting('mantle.compaction_databases') AS configured, format('%I', current_database() || '_bare') AS bare \gset
DROP DATABASE IF EXISTS :bare WITH (FORCE);
CREATE DATABASE :bare;
CREATE FUNCTION pg_temp.workers(bare boolean, wanted int) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT tap.wait_for(format('SELECT count(*) = %s FROM pg_stat_activity WHERE backend_type = ''mantle worker'' AND datname = %L',
                               wanted, current_database() || CASE WHEN bare THEN '_bare' ELSE '' END)) $$;
SELECT tap.namespace('tap-worker') AS ns \gset
SELECT new_id AS d FROM tap.mkdir(:ns, :ns, 'd/') \gset
SELECT code AS x FROM tap.put(:ns, :d, 'o1', 1) \gset
SELECT code AS x FROM tap.put(:ns, :d, 'o2', 2) \gset
SELECT is((SELECT count(*) FROM tap.meta() WHERE pid = :d AND ts > 0), 2::bigint, 'two deltas');
SELECT format('%s,%s,%s', :'configured', current_database(), current_database() || '_bare') AS both, current_database() || '_nowhere' AS nowhere \gset
ALTER SYSTEM SET mantle.compaction_databases = :'both';
ALTER SYSTEM SET mantle.compaction_naptime_ms = 10;
ALTER SYSTEM SET mantle.prune_grace_ms = 100;
SELECT pg_reload_conf() AS x \gset
SELECT ok(pg_temp.workers(false, 1), 'a worker starts for this database');
SELECT ok(pg_temp.workers(true, 1), 'and for one without the extension');
SELECT ok(tap.wait_for(format('SELECT count(*) = 0 FROM tap.meta() WHERE pid = %s AND ts > 0', :d)), 'deltas are folded');
SELECT is((SELECT bytes FROM mantle.dirstat(:ns, ARRAY[:d])), 3::bigint, 'exactly');
SELECT new_id AS i FROM tap.mkdir(:ns, :ns, 'i/', false) \gset
SELECT ok(tap.wait_for(format('SELECT NOT EXISTS (SELECT FROM tap.meta() WHERE id = %s AND explicit IS NOT NULL)', :i)), 'an implicit directory that nothing came to is pruned');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');
SELECT ok(pg_temp.workers(true, 1), 'the worker without an extension is still there');
ALTER SYSTEM SET mantle.compaction_databases = :'nowhere';
SELECT pg_reload_conf() AS x \gset
SELECT ok(pg_temp.workers(false, 0), 'the worker stops when its database is taken out');
SELECT ok(pg_temp.workers(true, 0), 'the other too; a database that does not exist is passed over');
ALTER SYSTEM RESET mantle.compaction_databases;
ALTER SYSTEM RESET mantle.compaction_naptime_ms;
ALTER SYSTEM RESET mantle.prune_grace_ms;
SELECT pg_reload_conf() AS x \gset
DROP DATABASE :bare WITH (FORCE);
SELECT * FROM finish();
