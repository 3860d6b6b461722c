-- Every hot statement reads only what it needs. The test counts the blocks that a call reads among 40,000 entries, of
-- which 20,000 are in one directory. Scanning a table or a whole PostgreSQL index would read hundreds. No table is
-- scanned, not even one that is small in a new database: each has enough rows here for a look-up to be cheaper.
\ir setup.psql
SELECT plan(64);
SELECT tap.namespace('tap-plans') AS ns \gset
CREATE FUNCTION pg_temp.fill(ns bigint, pid bigint, n int) RETURNS bigint LANGUAGE sql AS $$
    SELECT i.inserted FROM mantle.allocate_ids('plans', n) AS a CROSS JOIN LATERAL mantle.import_objects(
        5, ns, array_fill(pid, ARRAY[n]), ARRAY(SELECT 'o' || lpad(g::text, 6, '0') FROM generate_series(1, n) g),
        array_fill(1::bigint, ARRAY[n]), a.first_id, true, now()) AS i $$;
SELECT new_id AS big FROM tap.mkdir(:ns, :ns, 'big/') \gset
SELECT new_id AS d FROM tap.mkdir(:ns, :ns, 'd/') \gset
SELECT pg_temp.fill(:ns, :big, 16000) AS x \gset
SELECT new_id AS big FROM tap.mkdir(:ns, :ns, 'more/') \gset
SELECT pg_temp.fill(:ns, :big, 16000) AS x \gset
SELECT count(pg_temp.fill(:ns, m.new_id, 40)) AS x FROM generate_series(1, 200) g CROSS
    JOIN LATERAL tap.mkdir(:ns, :d, 'e' || g || '/') AS m \gset
SELECT count(tap.rmdir(:ns, :d, 'gone' || g || '/', m.new_id)) AS x FROM generate_series(1, 50) g CROSS
    JOIN LATERAL tap.mkdir(:ns, :d, 'gone' || g || '/') AS m \gset
INSERT INTO mantle.namespaces (ns, name, owner) SELECT 2^50 + n, 'tap-filler-' || n, 7 FROM generate_series(1, 3000) n;
INSERT INTO mantle.index_groups (index_group, slot_name) SELECT 100000 + n, 'tap_filler_' || n
    FROM generate_series(1, 3000) n;
INSERT INTO mantle.prepare_keys (index_group, key) SELECT 100000 + n, '' FROM generate_series(1, 3000) n;
INSERT INTO mantle.rename_attempts (ns, principal, request_id, attempt, state) SELECT 2^50, 5, gen_random_uuid(), n,
    'aborted' FROM generate_series(1, 3000) n;
INSERT INTO mantle.prune_queue (pid, seq, id, queued) SELECT 2^50, n, 2^50, now() + interval '1 day'
    FROM generate_series(1, 3000) n;
INSERT INTO mantle.operations (id, ns, principal, kind, directory_id, stepped) SELECT gen_random_uuid(), 2^50, 5,
    'remove_tree', 2^50, 'infinity' FROM generate_series(1, 3000) n;
SELECT count(mantle.allocate_ids('plans', 1)) AS x FROM generate_series(1, 1000) n \gset
VACUUM ANALYZE mantle.meta, mantle.requests, mantle.id_blocks, mantle.prune_queue, mantle.namespaces,
    mantle.index_groups,
    mantle.rename_attempts, mantle.operations, mantle.prepare_keys;

-- Waits until no other session has a snapshot here. Under an old one (of autovacuum's ANALYZE or the maintenance
-- worker) index scans cannot skip deleted rows: a step of compaction then reads 800 blocks instead of 30.
CREATE FUNCTION pg_temp.await_no_snapshot() RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_until timestamptz := clock_timestamp() + interval '30 s';
BEGIN
    LOOP
        PERFORM pg_stat_clear_snapshot();
        EXIT WHEN NOT EXISTS (
            SELECT FROM pg_stat_activity a
             WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_xmin IS NOT NULL);
        IF clock_timestamp() > v_until THEN
            RAISE EXCEPTION 'another session has had a snapshot for 30 s';
        END IF;
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
-- The median blocks of three calls, after six that warm caches and settle plans. (Any of those may plan again,
-- because the tables were analyzed.) `#` in the query becomes another number each time.
CREATE FUNCTION pg_temp.blocks(query text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_plan json;
    v_blocks bigint[];
BEGIN
    PERFORM pg_temp.await_no_snapshot();
    FOR i IN 1..9 LOOP
        EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ' || replace(query, '#', i::text) INTO v_plan;
        IF i > 6 THEN
            v_blocks := v_blocks || ((v_plan->0->'Plan'->>'Shared Hit Blocks')::bigint +
                (v_plan->0->'Plan'->>'Shared Read Blocks')::bigint);
        END IF;
    END LOOP;
    RETURN (SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY b) FROM unnest(v_blocks) b);
END $$;
-- Sequential scans by this transaction so far, except of grants, which are read whole, once per snapshot
-- (extension/src/row_security.rs).
CREATE FUNCTION pg_temp.scanned() RETURNS TABLE (name name, scans bigint) LANGUAGE sql VOLATILE AS $$
    SELECT c.relname, pg_stat_get_xact_numscans(c.oid) FROM pg_class c WHERE c.relnamespace = 'mantle'::regnamespace
        AND c.relkind = 'r' AND c.relname <> 'namespace_grants' $$;
CREATE FUNCTION pg_temp.at_most(query text, bound bigint, what text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    v_tables name[]; v_before bigint[];
    v_blocks bigint;
BEGIN
    SELECT array_agg(s.name), array_agg(s.scans) INTO v_tables, v_before FROM pg_temp.scanned() s;
    v_blocks := pg_temp.blocks(query);
    RETURN NEXT ok(v_blocks BETWEEN 1 AND bound, format('%s: %s blocks, at most %s', what, v_blocks, bound));
    RETURN NEXT is((SELECT string_agg(format('%s: %s', s.name, s.scans - b.scans), ', ')
                      FROM pg_temp.scanned() s JOIN unnest(v_tables, v_before) AS b(name, scans) USING (name)
                          WHERE s.scans > b.scans),
                   NULL, what || ': no table is read from end to end');
END $$;
CREATE FUNCTION tap.delta(ns bigint, pid bigint, number int) RETURNS void LANGUAGE sql AS $$
    INSERT INTO mantle.meta (pid, name, ts, ns, entries, subdirectories, bytes, modified)
    VALUES (pid, '/_ATTR', 20000 + number, ns, 0, 0, 0, now()) $$;
-- Allocates ids beforehand, because allocation is a call of its own.
SELECT first_id AS i FROM mantle.allocate_ids('plans', 1000) \gset

SELECT pg_temp.at_most(format('SELECT * FROM tap.put(%s, %s, ''new#'', id => %s + #)', :ns, :big, :i), 60,
    'put_object, new');
SELECT pg_temp.at_most(format('SELECT * FROM tap.put(%s, %s, ''o00000#'', id => %s + 10 + #)', :ns, :big, :i), 90,
    'put_object, over another');
SELECT pg_temp.at_most(format('SELECT * FROM tap.delete(%s, %s, ''o00001#'')', :ns, :big), 80, 'delete_object');
SELECT pg_temp.at_most(format('SELECT * FROM tap.mkdir(%s, %s, ''new#/'', id => %s + 20 + #)', :ns, :d, :i), 70,
    'mkdir');
SELECT pg_temp.at_most(format('SELECT * FROM tap.rmdir(%s, %s, ''new#/'', %s + 20 + #)', :ns, :d, :i), 120, 'rmdir');
SELECT pg_temp.at_most(format('SELECT * FROM mantle.set_attributes(''{5}'', ARRAY[%1$s], ARRAY[%2$s], ''{e#/}'',
    ARRAY[(SELECT id FROM mantle.stat(%1$s, ARRAY[%2$s], ''{e#/}''))], ''{9}'', ''{NULL}'', ''{NULL}'',
    ARRAY[NULL]::jsonb[], ''{NULL}'', ARRAY[gen_random_uuid()], ''{0}'',
        p_caller => ''{0}'')', :ns, :d), 80, 'set_attributes');
SELECT pg_temp.at_most(format('SELECT * FROM mantle.rename_object(5, %s, %s, ''o00002#'', %s, ''moved#'', false,
    gen_random_uuid(), 0, p_caller => ''0'')', :ns, :big, :d), 110, 'rename_object');
SELECT pg_temp.at_most(format('SELECT * FROM tap.rename(%1$s, %2$s, ''e#/'', (SELECT id FROM mantle.stat(%1$s,
    ARRAY[%2$s], ''{e#/}'')), %3$s, ''moved#/'')', :ns, :d, :big), 140, 'rename_directory');
SELECT new_id AS t FROM tap.mkdir(:ns, :ns, 't/') \gset
SELECT count(tap.mkdir(:ns, :t, g || '/', id => :i + 30 + g)) AS x FROM generate_series(1, 9) g \gset
SELECT pg_temp.at_most(format('SELECT * FROM tap.remove_tree(%1$s, %2$s, ''#/'', %3$s + 30 + #)', :ns, :t, :i), 140,
    'remove_tree');
SELECT pg_temp.at_most(format('SELECT mantle.abort_rename(5, %s, gen_random_uuid(), 1)', :ns), 30, 'abort_rename');
SELECT pg_temp.at_most(format('SELECT * FROM mantle.stat(%s, ARRAY[%s], ''{o00900#}'')', :ns, :big), 10, 'stat');
SELECT pg_temp.at_most(format('SELECT * FROM mantle.dirstat(%s, ARRAY[%s])', :ns, :big), 30, 'dirstat');
SELECT pg_temp.at_most(format('SELECT * FROM mantle.list(%s, %s, NULL, NULL, 100)', :ns, :big), 40,
    'list, the first 100');
SELECT pg_temp.at_most(format('SELECT * FROM mantle.list(%s, %s, ''o01500#'', NULL, 100)', :ns, :big), 40,
    'list, the last 100');
SELECT pg_temp.at_most('SELECT * FROM mantle.resolve_path(''tap-plans'', ''{d,e10#}'')', 40, 'resolve_path');
SELECT pg_temp.at_most(format('SELECT * FROM mantle.replay(5, %s, gen_random_uuid(), 0)', :ns), 15, 'replay');
-- Batches of 16.
CREATE FUNCTION tap.many(element text) RETURNS text LANGUAGE sql IMMUTABLE
    AS $$ SELECT format('ARRAY(SELECT %s FROM generate_series(1, 16) k)', $1) $$;
CREATE FUNCTION tap.of_batch(verb text, VARIADIC elements text[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT format('SELECT * FROM mantle.%s(%s)', $1, string_agg(tap.many(e), ', ' ORDER BY n))
        FROM unnest($2) WITH ORDINALITY AS u(e, n) $$;
SELECT :'ns' || '::bigint' AS tns, :'big' || '::bigint' AS tbig, :'t' || '::bigint' AS tt,
    :'i' || '::bigint + 100 + 16 * # + k' AS ti,
       :'i' || '::bigint + 300 + 16 * # + k' AS td \gset
SELECT pg_temp.at_most(tap.of_batch('put_object', '5', :'tns', :'tbig', $$'b#.' || k$$, :'ti', '7', '8', '420',
    '1::bigint', $$'e'$$, $$'t'$$,
    'NULL::jsonb', 'NULL::text', 'NULL::text', 'gen_random_uuid()', '0::bigint'), 800, 'put_object, a batch');
SELECT pg_temp.at_most(tap.of_batch('delete_object', '5', :'tns', :'tbig', $$'b#.' || k$$, 'NULL::bigint',
    'NULL::bigint', 'gen_random_uuid()', '0::bigint'), 900, 'delete_object, a batch');
SELECT pg_temp.at_most(tap.of_batch('mkdir', '5', :'tns', :'tt', $$'b#.' || k || '/'$$, :'td', '7', '8', '493', 'true',
    'NULL::jsonb',
    'gen_random_uuid()', '0::bigint'), 800, 'mkdir, a batch');
SELECT pg_temp.at_most(tap.of_batch('set_attributes', '5', :'tns', :'tt', $$'b#.' || k || '/'$$, :'td', 'NULL::int',
    'NULL::int', '448',
    'NULL::jsonb', 'NULL::boolean', 'gen_random_uuid()', '0::bigint'), 1000, 'set_attributes, a batch');
SELECT pg_temp.at_most(tap.of_batch('rmdir', '5', :'tns', :'tt', $$'b#.' || k || '/'$$, :'td', 'gen_random_uuid()',
    '0::bigint'), 1900, 'rmdir, a batch');
SELECT pg_temp.at_most(format('SELECT * FROM mantle.stat(%s, %s, %s)', :ns, tap.many(:'tbig'),
    tap.many($$'o0009' || 10 + k$$)), 120, 'stat, a batch');
-- Folds first what other tests have left. Then a step finds the delta records of one directory.
DO $$ BEGIN WHILE mantle.run_maintenance('compact') > 0 LOOP END LOOP; END $$;
SELECT pg_temp.await_no_snapshot() AS x \gset
VACUUM mantle.meta;
SELECT pg_temp.at_most(format('SELECT tap.delta(%s, %s, #), mantle.run_maintenance(''compact'')', :ns, :d), 150,
    'a step of compaction');
SELECT pg_temp.at_most('SELECT mantle.run_maintenance(''prune'')', 60, 'a step of pruning');
SELECT pg_temp.at_most('SELECT mantle.run_maintenance(''purge_tombstones'')', 30, 'a purge with nothing to do');
-- Row-level security does not prevent index scans.
SELECT mantle.grant_namespace('tap-plans', 'mantle_analyst') AS x \gset
SET ROLE mantle_analyst;
SELECT pg_temp.at_most('SELECT * FROM mantle.resolve(''tap-plans'', ''d/e10#'')', 40, 'resolve, as an analyst');
SELECT pg_temp.at_most('SELECT * FROM mantle.ls(''tap-plans'', ''d/e10#'')', 70, 'ls, as an analyst');
SELECT pg_temp.at_most('SELECT * FROM mantle.du(''tap-plans'', ''d/e10#'')', 60, 'du, as an analyst');
SELECT pg_temp.at_most('SELECT * FROM mantle.find(''tap-plans'', ''d/e10#'', ''o*'')', 110, 'find, as an analyst');
SELECT pg_temp.at_most(format('SELECT mantle.path_of(''tap-plans'', %s)', :big), 20, 'path_of, as an analyst');
RESET ROLE;
SELECT mantle.revoke_namespace('tap-plans', 'mantle_analyst') AS x \gset
-- Compaction keeps its pace when ANALYZE saw no delta record and many came afterwards, as after an import.
VACUUM ANALYZE mantle.meta;
SELECT count(tap.delta(:ns, m.pid, g)) AS x FROM generate_series(1, 160) g CROSS JOIN LATERAL (
    SELECT pid FROM mantle.meta WHERE ns = :ns AND name = '/_ATTR' AND ts = 0 AND NOT removed ORDER BY pid LIMIT 128) m
\gset
SELECT pg_temp.at_most('SELECT mantle.run_maintenance(''compact'')', 9000, 'a step of compaction among 20,000 records');
DO $$ BEGIN WHILE mantle.run_maintenance('compact') > 0 LOOP END LOOP; END $$;
DELETE FROM mantle.namespaces WHERE ns > 2^50;
DELETE FROM mantle.index_groups WHERE index_group > 100000;
DELETE FROM mantle.rename_attempts WHERE ns = 2^50;
DELETE FROM mantle.prune_queue WHERE pid = 2^50;
DELETE FROM mantle.operations WHERE ns = 2^50;
DO $$ BEGIN WHILE mantle.run_maintenance('empty_trash') > 0 LOOP END LOOP; END $$;
DELETE FROM mantle.operations WHERE ns = :ns;
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');

-- Counts are updated in place (HOT), so no PostgreSQL index may contain a column that they change.
SELECT mantle.compact(:d) AS x \gset
VACUUM mantle.meta;
BEGIN;
SELECT count(tap.put(:ns, :d, 'hot' || g)) AS x FROM generate_series(1, 5) g \gset
SELECT cmp_ok(pg_stat_get_xact_tuples_hot_updated('mantle.meta'::regclass), '>', 0::bigint,
    'counts are updated in place (HOT)');
COMMIT;
SELECT * FROM finish();
