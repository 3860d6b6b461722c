\ir setup.psql
BEGIN;
SELECT plan(33);
SELECT tap.namespace('tap-directories') AS ns \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SELECT ok(:a > 0, 'made');
SELECT results_eq(format('SELECT code, new_id FROM tap.mkdir(%s, %s, %L)', :ns, :ns, 'a/'),
                  format('VALUES (''MT012'', %s::bigint)', :a), 'exists: with its id');
SELECT tap.put(:ns, :ns, 'o') AS x \gset
SELECT is((SELECT code FROM tap.mkdir(:ns, :ns, 'o/')), 'MT016', 'an object of that name');
SELECT is((SELECT code FROM tap.mkdir(:ns, :ns, 'o')), 'MT001', 'a directory''s name ends in a slash');
SELECT is((SELECT code FROM tap.mkdir(:ns, :ns, '/_ATTR')), 'MT001', 'not the attribute record');
SELECT is((SELECT code FROM tap.mkdir(:ns, :ns, repeat('n', 256) || '/')), 'MT002', 'a long name');
SELECT is((SELECT code FROM tap.mkdir(:ns, 0, 'n/')), 'MT006', 'not in the super-root');
SELECT is((SELECT code FROM tap.mkdir(:ns, :ns, 'n/', true, NULL)), 'MT006', 'no request id');
SELECT is((SELECT code FROM tap.mkdir(:ns, :ns, 'n/', id => 1::bigint << 60)), 'MT040', 'id outside every block');
SELECT is((SELECT code FROM tap.mkdir(:ns, :ns, 'n/', id => NULL)), 'MT040', 'no id');

-- Implicit and explicit directories.
SELECT new_id AS i FROM tap.mkdir(:ns, :a, 'i/', false) \gset
SELECT is((SELECT code FROM tap.mkdir(:ns, :a, 'i/', false)), 'MT012', 'implicit over implicit');
SELECT results_eq(format('SELECT code, new_id, version FROM tap.mkdir(%s, %s, %L)', :ns, :a, 'i/'),
                  format('VALUES (NULL::text, %s::bigint, 2::bigint)', :i),
                      'an implicit directory becomes explicit, a new version');
SELECT ok((SELECT explicit FROM mantle.stat(:ns, ARRAY[:a], '{i/}')), 'and is');
SELECT is((SELECT code FROM tap.mkdir(:ns, :a, 'i/', false)), 'MT012', 'implicit over explicit changes nothing');

-- Counts: one statement reads primary and delta records.
SELECT results_eq(format('SELECT entries, subdirectories, bytes FROM mantle.dirstat(%s, ARRAY[%s, %s, %s])', :ns, :ns,
    :a, :i),
                  $$ VALUES (2::bigint, 1::bigint, 1::bigint), (1, 1, 0), (0, 0, 0) $$, 'counts');

-- Removing.
SELECT is((SELECT code FROM tap.rmdir(:ns, :ns, 'a/', :a)), 'MT017', 'not empty');
SELECT is((SELECT code FROM tap.rmdir(:ns, :ns, 'b/', :a)), 'MT010', 'not there');
SELECT is((SELECT code FROM tap.rmdir(:ns, :a, 'i/', :ns + 999)), 'MT018', 'another one by now');
SELECT is((SELECT code FROM tap.rmdir(:ns, :a, 'i', :i)), 'MT001', 'bad name');
SELECT is((SELECT code FROM tap.rmdir(:ns, 0, 'tap-directories/', :ns)), 'MT006', 'a root is removed as a namespace');
SELECT is((SELECT code FROM tap.rmdir(:ns + 1, :a, 'i/', :i)), 'MT011', 'no such namespace');
SELECT results_eq(format('SELECT * FROM tap.rmdir(%s, %s, ''i/'', %s, ''33333333-0000-0000-0000-000000000000'')', :ns,
    :a, :i),
                  'VALUES (NULL::text, false)', 'removed');
SELECT results_eq(format('SELECT * FROM tap.rmdir(%s, %s, ''i/'', %s, ''33333333-0000-0000-0000-000000000000'')', :ns,
    :a, :i),
                  'VALUES (NULL::text, true)', 'replayed');
SELECT is((SELECT code FROM tap.rmdir(:ns, :a, 'i/', :i, '33333333-0000-0000-0000-000000000000', 5)), 'MT020',
    'another request');
SELECT is((SELECT code FROM tap.mkdir(:ns, :i, 'x/')), 'MT018', 'nothing is made below a tombstone');
SELECT is((SELECT code FROM tap.put(:ns, :i, 'x')), 'MT018', 'no object either');
SELECT is((SELECT code FROM mantle.dirstat(:ns, ARRAY[:i])), 'MT018', 'dirstat knows');
SELECT is((SELECT count(*) FROM tap.meta() WHERE pid = :i), 1::bigint, 'only the tombstone is left');
SELECT is((SELECT code FROM tap.mkdir(:ns, :a, 'i/')), NULL, 'the name is free');
SELECT is((SELECT count(*) FROM tap.prune_queue() WHERE id = :a), mantle.is_distributed()::int::bigint,
    'a parent that was made by request is not looked at by the pruner, if this node knows');
SELECT new_id AS p FROM tap.mkdir(:ns, :ns, 'p/', false) \gset
SELECT new_id AS q FROM tap.mkdir(:ns, :p, 'q/') \gset
DELETE FROM mantle.prune_queue;
SELECT tap.rmdir(:ns, :p, 'q/', :q) AS x \gset
SELECT is((SELECT count(*) FROM tap.prune_queue() WHERE id = :p), 1::bigint, 'an implicit parent is');

-- Attributes of directories: see attributes.sql. Neighbours of a bad element are carried out.
SELECT results_eq(format($$
    SELECT ord, code FROM mantle.mkdir('{5,5,5}', array_fill(%s::bigint, ARRAY[3]), ARRAY[%s, %s, %s], '{m1/,bad,m2/}',
        ARRAY[tap.id(), tap.id(), tap.id()],
        '{1,1,1}', '{1,1,1}', '{493,493,493}', '{t,t,t}', ARRAY[NULL, NULL, NULL]::jsonb[],
        ARRAY[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()], '{0,0,0}',
            p_caller => '{0,0,0}') ORDER BY ord $$, :ns, :a, :a, :a),
    $$ VALUES (1, NULL::text), (2, 'MT001'), (3, NULL) $$, 'one bad element, two good ones');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');
SELECT * FROM finish();
ROLLBACK;
