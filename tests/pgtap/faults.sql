-- A fault of a whole call is raised. Ids are allocated, requests are remembered.
\ir setup.psql
SELECT plan(33);
SELECT tap.namespace('tap-faults') AS ns \gset
CREATE FUNCTION pg_temp.put_many(ns bigint, n int) RETURNS bigint LANGUAGE sql AS $$
    SELECT count(*) FROM mantle.put_object(array_fill(5, ARRAY[n]), array_fill(ns, ARRAY[n]), array_fill(ns, ARRAY[n]),
        ARRAY(SELECT 'o' || i FROM generate_series(1, n) i),
        (SELECT array_agg(a.first_id + i) FROM mantle.allocate_ids('pgtap', n) AS a, generate_series(0, n - 1) i),
            array_fill(1, ARRAY[n]), array_fill(1, ARRAY[n]), array_fill(1, ARRAY[n]),
        array_fill(1::bigint, ARRAY[n]), array_fill(''::text, ARRAY[n]), array_fill(''::text, ARRAY[n]),
        array_fill(NULL::jsonb, ARRAY[n]), array_fill(''::text, ARRAY[n]), array_fill(NULL::text, ARRAY[n]),
        ARRAY(SELECT gen_random_uuid() FROM generate_series(1, n)), array_fill(0::bigint, ARRAY[n]),
        p_caller => array_fill('0'::text, ARRAY[n])) $$;
SELECT lives_ok(format('SELECT pg_temp.put_many(%s, 1023)', :ns), '1024 latches');
SELECT throws_ok(format('SELECT pg_temp.put_many(%s, 1024)', :ns), 'MT007', NULL, '1025 latches');
SELECT throws_ok(format('SELECT pg_temp.put_many(%s, 16385)', :ns), 'MT007', NULL, 'too many elements');
SELECT throws_ok(format($$ SELECT * FROM mantle.delete_object('{5}', ARRAY[%s], ARRAY[%s], '{a,b}',
    '{NULL}', '{NULL}', ARRAY[gen_random_uuid()], '{0}',
        p_caller => '{0}') $$, :ns, :ns), 'MT006', NULL, 'arrays of unequal length');
SELECT throws_ok(format($$ SELECT * FROM mantle.delete_object('{5}', ARRAY[%s], NULL, NULL, NULL, NULL, NULL, NULL,
    p_caller => '{0}') $$, :ns),
    'MT006', NULL, 'no arrays');
SELECT throws_ok($$ SELECT * FROM mantle.allocate_ids('x', 0) $$, 'MT006', NULL, 'an empty block');
SELECT throws_ok($$ SELECT * FROM mantle.allocate_ids('x', (1 << 24) + 1) $$, 'MT006', NULL, 'too large a block');
SELECT throws_ok($$ SELECT * FROM mantle.allocate_ids(NULL, 1) $$, 'MT006', NULL, 'no owner');

-- Isolation: READ COMMITTED only.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT throws_ok(format('SELECT * FROM tap.put(%s, %s, ''r'', id => 1024)', :ns, :ns), 'MT041', NULL,
    'put under REPEATABLE READ');
SELECT throws_ok(format('SELECT * FROM tap.mkdir(%s, %s, ''r/'', id => 1024)', :ns, :ns), 'MT041', NULL,
    'mkdir under REPEATABLE READ');
SELECT throws_ok(format('SELECT * FROM tap.rmdir(%s, %s, ''r/'', 1024)', :ns, :ns), 'MT041', NULL,
    'rmdir under REPEATABLE READ');
SELECT throws_ok(format('SELECT * FROM tap.rename(%s, %s, ''r/'', 1024, %s, ''s/'')', :ns, :ns, :ns), 'MT041', NULL,
    'rename under REPEATABLE READ');
SELECT throws_ok('SELECT mantle.raise_epoch(1, 0, NULL)', 'MT041', NULL, 'raise_epoch under REPEATABLE READ');
SELECT throws_ok(format('SELECT mantle.compact(%s)', :ns), 'MT041', NULL, 'compact under REPEATABLE READ');
ROLLBACK;

-- A read-only transaction, like every transaction on a standby, writes nothing: neither by statements nor by the fast
-- path, nor on another node of Citus.
CREATE FUNCTION pg_temp.read_only(call text, ns bigint) RETURNS text LANGUAGE sql AS $$
    SELECT throws_ok(format('SET transaction_read_only = on; SELECT ' || call, ns), '25006', NULL,
        'read only: ' || call) $$;
SELECT tap.put(:ns, :ns, 'counted') AS x \gset
SELECT pg_temp.read_only(call, :ns) FROM (VALUES
    ('tap.put(%1$s, %1$s, ''ro'', id => 1024)'), ('tap.put(%1$s, %1$s, ''counted'', id => 1024)'),
        ('tap.mkdir(%1$s, %1$s, ''ro/'', id => 1024)'),
    ('tap.mkdir(%1$s, %1$s, ''ro/'', false, id => 1024)'), ('tap.delete(%1$s, %1$s, ''counted'')'),
        ('tap.rmdir(%1$s, %1$s, ''ro/'', 1024)'),
    ('tap.rename(%1$s, %1$s, ''r/'', 1024, %1$s, ''s/'')'),
        ('mantle.rename_object(5, %1$s, %1$s, ''counted'', %1$s, ''r'', false, gen_random_uuid(), 0,
            p_caller => ''0'')'),
    ('mantle.compact(%1$s)')) AS c(call);

-- Commit level.
SET synchronous_commit = off;
SELECT throws_ok(format('SELECT * FROM tap.put(%s, %s, ''r'', id => 1024)', :ns, :ns), 'MT042', NULL,
    'put without waiting for the flush');
SELECT throws_ok('SELECT * FROM mantle.allocate_ids(''x'', 1)', 'MT042', NULL, 'ids without waiting for the flush');
SET synchronous_commit = local;
SELECT tap.id() AS id \gset
SELECT is((SELECT code FROM tap.mkdir(:ns, :ns, 'local/', id => :id)), NULL,
    'the local flush is enough without a standby');
RESET synchronous_commit;

-- Ids.
SELECT first_id AS f1, last_id AS l1 FROM mantle.allocate_ids('x', 10) \gset
SELECT first_id AS f2, last_id AS l2 FROM mantle.allocate_ids('x', 1) \gset
SELECT is(:l1::bigint - :f1, 9::bigint, 'a block of ten');
SELECT is(:f2::bigint, :l1 + 1::bigint, 'the next one follows');
SELECT results_eq(format('SELECT first_id, last_id, owner FROM mantle.id_blocks WHERE first_id = %s', :f1),
    format('VALUES (%s::bigint, %s::bigint, ''x'')', :f1, :l1), 'a row of the table');
UPDATE mantle.id_blocks SET timeline = timeline + 1 WHERE first_id = :f2;
SELECT is((SELECT first_id FROM mantle.allocate_ids('x', 1)), :l2 + 1 + (1 << 24)::bigint,
    'another timeline: skips ahead');

-- Requests.
SELECT results_eq(format('SELECT known, code FROM mantle.replay(5, %s, gen_random_uuid(), 0)', :ns),
    'VALUES (false, NULL::text)', 'not known');
SELECT new_id AS o FROM tap.put(:ns, :ns, 'known', request => '99999999-0000-0000-0000-000000000000', hash => 3) \gset
SELECT results_eq(format('SELECT known, code, verb, id, version, flush_lsn <= pg_current_wal_flush_lsn()
    FROM mantle.replay(5, %s, ''99999999-0000-0000-0000-000000000000'', 3)', :ns),
                  format('VALUES (true, NULL::text, ''put_object'', %s::bigint, 1::bigint, true)', :o), 'known');
SELECT results_eq(format('SELECT known, code, verb FROM mantle.replay(5, %s, ''99999999-0000-0000-0000-000000000000'',
    4)', :ns), 'VALUES (true, ''MT020'', NULL::text)', 'known for another request');
SELECT * FROM finish();
