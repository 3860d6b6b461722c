-- du() by level, and usage() as the gateway calls it, compared with a count over every entry; and the locators in use.
\ir setup.psql
BEGIN;
SELECT plan(14);
SELECT tap.namespace('tap-usage') AS ns \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SELECT new_id AS b FROM tap.mkdir(:ns, :a, 'b/') \gset
SELECT new_id AS c FROM tap.mkdir(:ns, :b, 'c/') \gset
SELECT new_id AS e FROM tap.mkdir(:ns, :a, 'e/') \gset
SELECT new_id AS z FROM tap.mkdir(:ns, :ns, 'z/') \gset
SELECT tap.put(:ns, :ns, 'o', 1) AS x \gset
SELECT tap.put(:ns, :a, 'o', 10) AS x \gset
SELECT count(tap.put(:ns, :b, 'o' || i, 100)) AS x FROM generate_series(1, 3) i \gset
SELECT tap.put(:ns, :c, 'o', 1000, locator => 'objects/00/used') AS x \gset
PREPARE du AS SELECT directory, level, objects, directories, bytes FROM mantle.du('tap-usage', $1, $2)
    ORDER BY directory;
SELECT results_eq('EXECUTE du('''', 0)', 'VALUES ('''', 0, 6::bigint, 5::bigint, 1311::bigint)', 'everything');
SELECT results_eq('EXECUTE du('''', 1)', $$ VALUES ('', 0, 6::bigint, 5::bigint, 1311::bigint), ('a/', 1, 5, 3, 1310),
    ('z/', 1, 0, 0, 0) $$, 'one level');
SELECT results_eq('EXECUTE du('''', 2)', $$ VALUES ('', 0, 6::bigint, 5::bigint, 1311::bigint), ('a/', 1, 5, 3, 1310),
    ('a/b/', 2, 4, 1, 1300),
    ('a/e/', 2, 0, 0, 0), ('z/', 1, 0, 0, 0) $$, 'two levels');
SELECT results_eq('EXECUTE du(''a/b'', 100)', $$ VALUES ('', 0, 4::bigint, 1::bigint, 1300::bigint),
    ('c/', 1, 1, 0, 1000) $$, 'deeper than it goes');
SELECT is_empty('EXECUTE du(''a/x'', 1)', 'no such directory');
SELECT is_empty('EXECUTE du(''a'', -1)', 'no such depth');
SELECT sum(mantle.compact(m.pid)) AS x FROM (SELECT DISTINCT pid FROM tap.meta() WHERE ts > 0) AS m \gset
SELECT tap.delete(:ns, :b, 'o1') AS x \gset
SELECT results_eq('SELECT * FROM mantle.du(''tap-usage'', ''a'')', 'VALUES (4::bigint, 3::bigint, 1210::bigint)',
    'primary and delta records both count');
SELECT results_eq('SELECT owner, grp, mode FROM mantle.du(''tap-usage'', ''a'', 1) WHERE level = 1 LIMIT 1',
    'VALUES (7, 8, 493)', 'with their permissions');
SET LOCAL ROLE mantle_gateway;
SELECT results_eq(format('SELECT directory, objects, directories, bytes FROM mantle.usage(%s, %s, 1) ORDER BY directory',
    :ns, :a), $$ VALUES ('', 4::bigint, 3::bigint, 1210::bigint), ('b/', 3, 1, 1200), ('e/', 0, 0, 0) $$,
    'the gateway''s');
SELECT is_empty(format('SELECT * FROM mantle.usage(%s, %s, 1)', :z, :a), 'of this namespace only');
SELECT is_empty(format('SELECT * FROM mantle.usage(%s, 1, 1)', :ns), 'of a directory only');
RESET ROLE;
SELECT ok((SELECT d IS NULL FROM (SELECT objects AS d FROM mantle.du('tap-usage', 'x')) AS d),
    'NULL when there is none');

SELECT results_eq($$ SELECT * FROM mantle.unused_locators(ARRAY['objects/00/used', 'objects/00/orphan', NULL]) $$,
    $$ VALUES ('objects/00/orphan') $$, 'a locator that no object names');
SELECT tap.delete(:ns, :c, 'o') AS x \gset
SELECT set_eq($$ SELECT * FROM mantle.unused_locators(ARRAY['objects/00/used', 'objects/00/orphan']) $$,
    ARRAY['objects/00/used', 'objects/00/orphan'], 'or names no more');
SELECT * FROM finish();
ROLLBACK;
