\ir setup.psql
BEGIN;
SELECT plan(34);
SELECT tap.id() AS a, tap.id() AS b \gset
\set request '11111111-1111-1111-1111-111111111111'

SELECT results_eq(format($$ SELECT code, ns, owner, replayed FROM mantle.create_namespace(5, 'ns-a', %s, 7, 8, 493, %L,
    1) $$, :a, :'request'),
                  format($$ VALUES (NULL::text, %s::bigint, 7, false) $$, :a), 'created');
SELECT results_eq(format($$ SELECT code, ns, owner, replayed, flush_lsn IS NOT NULL
    FROM mantle.create_namespace(5, 'ns-a', %s, 7, 8, 493, %L, 1) $$, :b, :'request'),
                  format($$ VALUES (NULL::text, %s::bigint, 7, true, true) $$, :a),
                      'a retry gets the first answer, and a position');
SELECT is((SELECT code FROM mantle.create_namespace(5, 'ns-b', :b, 7, 8, 493, :'request', 2)), 'MT020',
    'another request under its id');
SELECT results_eq(format($$ SELECT code, ns, owner FROM mantle.create_namespace(6, 'ns-a', %s, 9, 9, 493, %L, 1) $$,
    :b, :'request'),
                  format($$ VALUES ('MT013', %s::bigint, 7) $$, :a),
                      'taken: by whom (a request id belongs to its principal)');
SELECT is((SELECT code FROM mantle.create_namespace(5, 'Bad', :b, 7, 8, 493, gen_random_uuid(), 1)), 'MT005',
    'bad name');
SELECT is((SELECT code FROM mantle.create_namespace(5, 'good', 5, 7, 8, 493, gen_random_uuid(), 1)), 'MT040',
    'id outside every block');
SELECT is((SELECT code FROM mantle.create_namespace(5, 'good', :b, 7, 8, 1024, gen_random_uuid(), 1)), 'MT006',
    'bad mode');
SELECT is((SELECT code FROM mantle.create_namespace(5, 'good', :b, 7, 8, 493, NULL, 1)), 'MT006', 'no request id');

SELECT is((SELECT name FROM mantle.namespace('ns-a')), 'ns-a', 'found by name');
SELECT is_empty($$ SELECT * FROM mantle.namespace('ns-x') $$, 'not found by name');
SELECT ok('ns-a' IN (SELECT name FROM mantle.list_namespaces()), 'listed');
SELECT is((SELECT id FROM mantle.stat(:a, '{0}', '{ns-a/}')), :a::bigint, 'the root has an entry in the super-root');
SELECT is((SELECT code FROM tap.mkdir(:b, :a, 'd/')), 'MT011', 'no such namespace');

-- The sizes of keys.
CREATE FUNCTION pg_temp.sizes() RETURNS int[] LANGUAGE sql AS $$
    SELECT ARRAY[key_levels, key_bytes, moved_levels::int, moved_bytes::int] FROM mantle.namespaces WHERE name = 'ns-a' $$;
SELECT is(pg_temp.sizes(), '{16,128,0,0}', 'at first');
SELECT mantle.raise_key_size(:a, 32, 100) AS x \gset
SELECT is(pg_temp.sizes(), '{32,128,0,0}', 'raised, never lowered');
SELECT ok(mantle.admit_move(:a, 96, -5), 'a move up to the limit of components');
SELECT is(pg_temp.sizes(), '{32,128,96,0}', 'is noted; what becomes shorter is not');
SELECT ok(NOT mantle.admit_move(:a, 1, 0), 'beyond the limit of components');
SELECT ok(mantle.admit_move(:a, 0, 896), 'up to the limit of bytes');
SELECT ok(NOT mantle.admit_move(:a, -1, 1), 'beyond the limit of bytes');
SELECT is(pg_temp.sizes(), '{32,128,96,896}', 'what is not admitted is not noted');

-- What the largest key below a directory has beyond the directory's own.
CREATE FUNCTION pg_temp.below(directory bigint) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(b.levels || ' ' || b.bytes, 'not read') FROM mantle.largest_below(directory) AS b $$;
SELECT tap.namespace('ns-below') AS below \gset
SELECT is(pg_temp.below(:below), '0 0', 'nothing');
SELECT new_id AS deep FROM tap.mkdir(:below, :below, 'dd/') \gset
SELECT tap.put(:below, :deep, 'xyz') AS x \gset
SELECT is(pg_temp.below(:below), '2 6', 'the components and bytes of dd/xyz');
SELECT tap.put(:below, :below, 'long-name') AS x \gset
SELECT is(pg_temp.below(:below), '2 9', 'the largest key in components, and the largest in bytes');
SELECT count(tap.put(:below, :deep, 'o' || i)) AS x FROM generate_series(1, 1000 - 4) AS i \gset
SELECT is(pg_temp.below(:below), '2 9', 'of 999 entries');
SELECT tap.put(:below, :below, 'one-more') AS x \gset
SELECT is(pg_temp.below(:below), 'not read', 'of 1,000');

-- Deleting.
SELECT tap.mkdir(:a, :a, 'i/', false) AS d \gset
SELECT new_id AS implicit FROM tap.mkdir(:a, :a, 'i/', false) \gset
SELECT new_id AS deeper FROM tap.mkdir(:a, :implicit, 'j/', false) \gset
SELECT new_id AS object FROM tap.put(:a, :deeper, 'o') \gset
SELECT is((SELECT code FROM mantle.delete_namespace(7, 'ns-a', gen_random_uuid(), 1)), 'MT017',
    'an object below is content');
SELECT tap.delete(:a, :deeper, 'o') AS d \gset
SELECT new_id AS e FROM tap.mkdir(:a, :deeper, 'explicit/') \gset
SELECT is((SELECT code FROM mantle.delete_namespace(7, 'ns-a', gen_random_uuid(), 1)), 'MT017',
    'an explicit directory below is content');
SELECT tap.rmdir(:a, :deeper, 'explicit/', :e) AS d \gset
SELECT results_eq($$ SELECT code, ns, replayed FROM mantle.delete_namespace(7, 'ns-a',
    '22222222-1111-1111-1111-111111111111', 1) $$,
                  format($$ VALUES (NULL::text, %s::bigint, false) $$, :a), 'empty implicit directories go with it');
SELECT results_eq($$ SELECT code, ns, replayed FROM mantle.delete_namespace(7, 'ns-a',
    '22222222-1111-1111-1111-111111111111', 1) $$,
                  format($$ VALUES (NULL::text, %s::bigint, true) $$, :a), 'replayed');
SELECT is((SELECT code FROM mantle.delete_namespace(7, 'ns-a', gen_random_uuid(), 1)), 'MT011', 'gone');
SELECT is((SELECT count(*) FROM tap.meta() WHERE ns = :a AND id IS NOT NULL), 0::bigint, 'no entry stays');
SELECT is((SELECT count(*) FROM tap.meta() WHERE pid IN (:a, :implicit, :deeper) AND name = '/_ATTR' AND removed),
    3::bigint,
          'every directory has a tombstone');
SELECT is_empty(format($$ SELECT * FROM tap.damage(%s) $$, :a), 'no damage');
SELECT * FROM finish();
ROLLBACK;
