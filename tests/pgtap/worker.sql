-- The background worker compacts and prunes, in every database with the extension or in those that are named. It
-- waits in a named database without the extension, stops on request, and restarts after it was terminated.
\ir setup.psql
SELECT plan(27);
SELECT current_setting('mantle.compaction_databases') AS configured, format('%I', current_database() || '_bare')
    AS bare \gset
DROP DATABASE IF EXISTS :bare WITH (FORCE);
CREATE DATABASE :bare;
CREATE FUNCTION pg_temp.workers(bare boolean, wanted int) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT tap.wait_for(format('SELECT count(*) = %s FROM pg_stat_activity WHERE backend_type = ''mantle worker''
        AND datname = %L',
                               wanted, current_database() || CASE WHEN bare THEN '_bare' ELSE '' END)) $$;
SELECT tap.namespace('tap-worker') AS ns \gset
SELECT new_id AS d FROM tap.mkdir(:ns, :ns, 'd/') \gset
SELECT code AS x FROM tap.put(:ns, :d, 'o1', 1) \gset
SELECT code AS x FROM tap.put(:ns, :d, 'o2', 2) \gset
SELECT is((SELECT count(*) FROM tap.meta() WHERE pid = :d AND ts > 0), 2::bigint, 'two deltas');
SELECT format('%s,%s,%s', :'configured', current_database(), current_database() || '_bare') AS both,
    current_database() || '_nowhere' AS nowhere \gset
ALTER SYSTEM SET mantle.compaction_databases = :'both';
ALTER SYSTEM SET mantle.compaction_naptime_ms = 10;
ALTER SYSTEM SET mantle.prune_grace_ms = 100;
SELECT pg_reload_conf() AS x \gset
SELECT ok(pg_temp.workers(false, 1), 'a worker starts for this database');
SELECT ok(pg_temp.workers(true, 1), 'and for one without the extension');
SELECT ok(tap.wait_for(format('SELECT count(*) = 0 FROM tap.meta() WHERE pid = %s AND ts > 0', :d)),
    'deltas are folded');
SELECT is((SELECT bytes FROM mantle.dirstat(:ns, ARRAY[:d])), 3::bigint, 'exactly');
SELECT new_id AS i FROM tap.mkdir(:ns, :ns, 'i/', false) \gset
SELECT ok(tap.wait_for(format('SELECT NOT EXISTS (SELECT FROM tap.meta() WHERE id = %s AND explicit IS NOT NULL)',
    :i)), 'an implicit directory that nothing came to is pruned');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');
SELECT ok(pg_temp.workers(true, 1), 'the worker without an extension is still there');
ALTER SYSTEM SET mantle.compaction_databases = :'nowhere';
SELECT pg_reload_conf() AS x \gset
SELECT ok(pg_temp.workers(false, 0), 'the worker stops when its database is taken out');
SELECT ok(pg_temp.workers(true, 0), 'the other too; a database that does not exist is passed over');

-- All databases with the extension.
SELECT format('%I', current_database() || '_second') AS second \gset
DROP DATABASE IF EXISTS :second WITH (FORCE);
CREATE DATABASE :second;
SELECT dblink_connect('second', current_setting('tap.connection') || ' dbname=' || :'second') AS x \gset
SELECT dblink_exec('second', 'CREATE EXTENSION mantle') AS x \gset
CREATE FUNCTION pg_temp.second(query text) RETURNS text LANGUAGE sql VOLATILE AS $$ SELECT r.t
    FROM dblink('second', query) AS r(t text) $$;
-- Writes delta records there, and counts those that are not folded yet.
CREATE FUNCTION pg_temp.append(more int) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT string_agg(pg_temp.second('SELECT mantle.apply_deltas(ARRAY[ROW(1024, 1024, 1, 0,
        10)::mantle.delta])::text'), '') FROM generate_series(1, more) $$;
CREATE FUNCTION pg_temp.is_folded(entries bigint) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT tap.wait_for(format($q$
        SELECT pg_temp.second('SELECT count(*) || '' '' || sum(entries) FROM mantle.meta WHERE pid = 1024') = '1 %s'
        $q$, entries)) $$;
CREATE FUNCTION pg_temp.worker() RETURNS int LANGUAGE sql VOLATILE AS $$
    SELECT pid FROM pg_stat_activity WHERE backend_type = 'mantle worker' AND datname = current_database() || '_second'
        $$;
SELECT dblink_exec('second', 'SET mantle.delta_records = always') AS x \gset
SELECT pg_temp.append(2) AS x \gset
ALTER SYSTEM SET mantle.compaction_databases = '*';
SELECT pg_reload_conf() AS x \gset
SELECT ok(pg_temp.is_folded(2), 'a database that is not named: its deltas are folded');
SELECT ok(pg_temp.workers(false, 1), 'this one has a worker too');
SELECT ok(pg_temp.workers(true, 0), 'where there is no extension none stays');
SELECT is((SELECT string_agg(c.detail, ' ') FROM mantle.check_cluster() AS c WHERE c.problem = 'worker'), NULL,
    'no database is left out');
-- The worker has run long enough to find the extension.
SELECT ok(tap.wait_for('SELECT bool_or(backend_start < clock_timestamp() - interval ''2 s'') FROM pg_stat_activity
    WHERE pid = pg_temp.worker()'), 'a worker that stays');
SELECT pg_temp.worker() AS ended \gset
SELECT pg_terminate_backend(:ended) AS x \gset
SELECT pg_temp.append(3) AS x \gset
SELECT ok(pg_temp.is_folded(5), 'and is ended comes back, and folds');
SELECT isnt(pg_temp.worker(), :ended, 'as another process');

-- A worker that dies is told of, also under `*`, and started again soon.
SELECT is(pg_temp.second('SELECT count(*) FROM mantle.worker_problems()'), '0', 'nothing is wrong with it');
SELECT ok(tap.wait_for($q$ SELECT pg_temp.second('SELECT bool_and(succeeded > now() - interval ''1 minute''
    AND failures = 0) AND count(*) = 10 FROM mantle.worker_steps') = 't' $q$), 'each of its steps has succeeded');
SELECT pg_temp.second('SELECT pg_get_functiondef(''mantle.maintain_pruning()''::regprocedure)') AS whole \gset
SELECT dblink_exec('second', $q$ CREATE OR REPLACE FUNCTION mantle.maintain_pruning() RETURNS bigint LANGUAGE plpgsql
    AS 'BEGIN RAISE EXCEPTION ''broken'' USING ERRCODE = ''22012''; END' $q$) AS x \gset
SELECT ok(tap.wait_for($q$ SELECT pg_temp.second('SELECT string_agg(detail, '' '') FROM mantle.check_cluster()
    WHERE problem = ''worker''') LIKE 'step prune has failed % times since %, at last with 22012: broken' $q$),
    'a step that keeps failing is named');
SELECT dblink_exec('second', :'whole') AS x \gset
SELECT ok(tap.wait_for($q$ SELECT pg_temp.second('SELECT count(*) FROM mantle.worker_problems()') = '0' $q$),
    'until it succeeds');

SELECT dblink_connect('bare', current_setting('tap.connection') || ' dbname=' || :'bare') AS x \gset
SELECT dblink_exec('bare', 'CREATE EXTENSION mantle') AS x \gset
SELECT dblink_disconnect('bare') AS x \gset
SELECT pg_reload_conf() AS x \gset
SELECT ok(pg_temp.workers(true, 1), 'a database that gets the extension is looked at again, at once after a reload');

-- Writes too many answers to request ids there.
SELECT pg_temp.second($q$ WITH made AS (
    INSERT INTO mantle.requests (pid, ns, principal, request_id, request_hash, verb, id, created)
    SELECT 1024, 1024, 5, gen_random_uuid(), 0, 'old', i, now() - i * interval '2 minutes' FROM generate_series(1, 50)
        AS i RETURNING 1)
    SELECT count(*) FROM made $q$) AS x \gset
SELECT pg_temp.second('SELECT pg_stat_force_next_flush()::text') AS x \gset
ALTER SYSTEM SET mantle.compaction_databases = :'second';
ALTER SYSTEM SET mantle.compaction_batch = 7;
ALTER SYSTEM SET mantle.request_rows_max = 20;
SELECT pg_reload_conf() AS x \gset
SELECT ok(tap.wait_for($q$ SELECT pg_temp.second('SELECT count(*) FROM mantle.requests') = '20' $q$),
    'the worker keeps as many as the setting allows');
SELECT is(pg_temp.second('SELECT max(id) FROM mantle.requests'), '20', 'the youngest');
SELECT is(pg_temp.second('SELECT up_to < now() - interval ''40 minutes'' AND up_to > now() - interval ''44 minutes''
    FROM mantle.purged_requests'), 't', 'and writes down how far it went');
SELECT ok(pg_temp.workers(false, 0), 'no worker but where a database is named');

-- A database that will be dropped.
SELECT dblink_disconnect('second') AS x \gset
ALTER DATABASE :second ALLOW_CONNECTIONS false;
SELECT ok(tap.wait_for('SELECT pg_temp.worker() IS NULL'), 'its worker goes when it may not be connected to any more');
DROP DATABASE :second;
ALTER SYSTEM RESET mantle.compaction_batch;
ALTER SYSTEM RESET mantle.request_rows_max;
ALTER SYSTEM RESET mantle.compaction_databases;
ALTER SYSTEM RESET mantle.compaction_naptime_ms;
ALTER SYSTEM RESET mantle.prune_grace_ms;
SELECT pg_reload_conf() AS x \gset
DROP DATABASE :bare WITH (FORCE);
SELECT * FROM finish();
