\ir setup.psql
BEGIN;
SELECT plan(35);
SELECT tap.namespace('tap-import') AS ns \gset
SELECT first_id AS i FROM mantle.allocate_ids('import', 3000) \gset
CREATE FUNCTION pg_temp.dirs(ns bigint, pids bigint[], names text[], ids bigint[]) RETURNS TABLE (ord int, code text,
    id bigint) LANGUAGE sql AS $$
    SELECT * FROM mantle.import_directories(5, ns, pids, names, ids) ORDER BY ord $$;

-- Directories: u/, u/v/, u/ again, w/ below the second u/, a bad name, a child of the bad one.
SELECT results_eq(format('SELECT * FROM pg_temp.dirs(%1$s, ARRAY[%1$s, %2$s, %1$s, %2$s + 2, %1$s, %2$s + 4],
    ''{u/,v/,u/,w/,x//,y/}'', ARRAY[%2$s, %2$s+1, %2$s+2, %2$s+3, %2$s+4, %2$s+5])', :ns, :i),
                  format('VALUES (3, ''MT012'', %s::bigint), (5, ''MT001'', NULL), (6, ''MT018'', NULL)', :i),
                      'only those not inserted are answered');
SELECT is(mantle.path_of('tap-import', :i + 3), 'u/w/', 'the child of a repeated directory is in the first one');
SELECT results_eq(format('SELECT * FROM pg_temp.dirs(%1$s, ARRAY[%1$s, %2$s, %1$s, %2$s + 2, %1$s, %2$s + 4],
    ''{u/,v/,u/,w/,x//,y/}'', ARRAY[%2$s, %2$s+1, %2$s+2, %2$s+3, %2$s+4, %2$s+5])', :ns, :i),
                  format('VALUES (1, ''MT012'', %1$s::bigint), (2, ''MT012'', %1$s + 1), (3, ''MT012'', %1$s), (4,
                      ''MT012'', %1$s + 3), (5, ''MT001'', NULL), (6, ''MT018'', NULL)', :i), 'the same call again');
SELECT results_eq(format('SELECT * FROM pg_temp.dirs(%1$s, ARRAY[%1$s, %2$s + 10, %2$s + 11, %2$s + 12],
    ''{u/,v/,n/,m/}'', ARRAY[%2$s + 10, %2$s + 11, %2$s + 12, %2$s + 13])', :ns, :i),
                  format('VALUES (1, ''MT012'', %1$s::bigint), (2, ''MT012'', %1$s + 1)', :i),
                      'other ids: children follow the parents that are there');
SELECT is(mantle.path_of('tap-import', :i + 13), 'u/v/n/m/', 'to their place');
SELECT is((SELECT explicit FROM mantle.stat(:ns, ARRAY[:ns], '{u/}')), false, 'implicit');
SELECT results_eq(format('SELECT owner, grp, mode, version FROM mantle.stat(%1$s, ARRAY[%1$s], ''{u/}'')', :ns),
    'VALUES (7, 8, 493, 1::bigint)', 'owner and mode like the root');
SELECT tap.put(:ns, :ns, 'obj') AS x \gset
SELECT new_id AS gone FROM tap.mkdir(:ns, :ns, 'gone/') \gset
SELECT tap.rmdir(:ns, :ns, 'gone/', :gone) AS x \gset
SELECT results_eq(format('SELECT ord, code FROM pg_temp.dirs(%1$s, ARRAY[%1$s, %3$s, %1$s, 5, %1$s, %2$s + 25],
    ''{obj/,a/,b/,c/,d/,e/}'', ARRAY[%2$s+20, %2$s+21, 1::bigint << 60, %2$s+23, NULL, %2$s+25])', :ns, :i, :gone),
                  $$ VALUES (1, 'MT016'), (2, 'MT018'), (3, 'MT040'), (4, 'MT006'), (5, 'MT040'), (6, 'MT006') $$,
                      'refusals');
SELECT is((SELECT code FROM pg_temp.dirs(:ns + 1, ARRAY[:ns], '{q/}', ARRAY[:i + 30])), 'MT011', 'no such namespace');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');
SELECT throws_ok(format('SELECT * FROM pg_temp.dirs(%s, ARRAY(SELECT 5000 + g FROM generate_series(1, 1025) g),
    ARRAY(SELECT ''a'' || g || ''/'' FROM generate_series(1, 1025) g), ARRAY(SELECT %s + 100 + g
    FROM generate_series(1, 1025) g))', :ns, :i), 'MT007', NULL, 'too many parents outside of the call');

-- Objects.
CREATE FUNCTION pg_temp.objects(ns bigint, pids bigint[], names text[], sizes bigint[], first bigint) RETURNS text
    LANGUAGE sql AS $$
    SELECT format('%s %s %s %s', inserted, existing, refused_ord, refused_code)
      FROM mantle.import_objects(5, ns, pids, names, sizes, first, true, '2020-01-01') $$;
SELECT is(pg_temp.objects(:ns, ARRAY[:i, :i, :i + 1, :i, :ns, :gone, :i], '{o1,v,o2,o1,x/,y,z}', '{1,2,3,4,5,6,-1}',
    :i + 200), '2 1 {5,6,7,2} {MT001,MT018,MT006,MT015}', 'two in, one repeated, four refused');
SELECT is(pg_temp.objects(:ns, ARRAY[:i, :i, :i + 1, :i, :ns, :gone, :i], '{o1,v,o2,o1,x/,y,z}', '{1,2,3,4,5,6,-1}',
    :i + 200), '0 3 {5,6,7,2} {MT001,MT018,MT006,MT015}', 'the same call again');
SELECT results_eq(format('SELECT id, owner, grp, mode, size, synthetic, locator, modified FROM mantle.stat(%s,
    ARRAY[%s], ''{o2}'')', :ns, :i + 1),
                  format('VALUES (%s::bigint, 7, 8, 420, 3::bigint, true, NULL::text, ''2020-01-01''::timestamptz)',
                      :i + 202), 'the row: id by its place in the call, no locator');
SELECT is(pg_temp.objects(:ns, ARRAY[:i], '{o1}', '{99}', :i + 300), '0 1 {} {}',
    'an object that exists is not changed');
SELECT is((SELECT size FROM mantle.stat(:ns, ARRAY[:i], '{o1}')), 1::bigint, 'not changed');
SELECT is(pg_temp.objects(:ns, ARRAY[:i + 12, :i + 12], '{p,q}', '{10,20}', :i + 400), '2 0 {} {}',
    'into a directory without an attribute record');
SELECT results_eq(format('SELECT entries, bytes FROM mantle.dirstat(%s, ARRAY[%s])', :ns, :i + 12),
    'VALUES (3::bigint, 30::bigint)', 'counted');
SELECT is((SELECT count(*) FROM tap.meta() WHERE pid = :i + 12 AND ts > 0), 0::bigint, 'without a delta record');
SELECT is(pg_temp.objects(:ns, '{}', '{}', '{}', :i), '0 0 {} {}', 'nothing');
SELECT throws_ok(format('SELECT pg_temp.objects(%s, ARRAY[%s], ''{a}'', ''{1}'', 5)', :ns, :i), 'MT040', NULL,
    'ids outside every block');
SELECT throws_ok(format('SELECT pg_temp.objects(%s, ARRAY[%s], ''{a}'', ''{1}'', %s)', :ns + 1, :i, :i), 'MT011', NULL,
    'no such namespace');
SELECT throws_ok(format('SELECT pg_temp.objects(%s, ARRAY(SELECT 5000 + g FROM generate_series(1, 1025) g),
    array_fill(''a''::text, ARRAY[1025]), array_fill(1::bigint, ARRAY[1025]), %s)', :ns, :i), 'MT007', NULL,
    'too many directories');
SELECT throws_ok(format('SELECT pg_temp.objects(%s, ARRAY[%s], ''{a,b}'', ''{1}'', %s)', :ns, :i, :i), 'MT006', NULL,
    'unequal lengths');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');
SELECT results_eq($$ SELECT * FROM mantle.du('tap-import', 'u') $$, 'VALUES (4::bigint, 4::bigint, 34::bigint)', 'du');
SELECT results_eq($$ SELECT name FROM mantle.ls('tap-import', '/u/') $$, $$ VALUES ('o1'), ('v/'), ('w/') $$, 'ls');

-- The importer finds directories, and keeps those that a listing names. It reads no entry, and gives no metadata.
SET LOCAL ROLE mantle_importer;
SELECT results_eq(format('SELECT ord, id FROM mantle.import_known(%1$s, ARRAY[%1$s, %1$s, %1$s, %2$s], ''{u/,obj,none/,v/}'')
    ORDER BY ord', :ns, :i), format('VALUES (1, %1$s::bigint), (4, %1$s + 1)', :i), 'ids of directories, and of nothing else');
SELECT is_empty(format('SELECT * FROM mantle.import_known(%s, ARRAY[%s], ''{u/}'')', :ns + 1, :ns), 'of the namespace');
SELECT results_eq(format('SELECT * FROM mantle.import_explicit(5, %1$s, ARRAY[%1$s, %1$s, %1$s, %1$s], ''{u/,late/,obj/,x}'',
    ARRAY[%2$s, %2$s + 1, %2$s + 2, %2$s + 3]) ORDER BY ord', :ns, :i + 500),
    $$ VALUES (1, NULL), (2, NULL), (3, 'MT016'), (4, 'MT001') $$, 'one that was implicit, one that was missing, two refused');
SELECT results_eq(format('SELECT code FROM mantle.import_explicit(5, %1$s, ARRAY[%1$s], ''{u/}'', ARRAY[%2$s])', :ns, :i + 504),
    $$ VALUES ('MT012') $$, 'again');
SELECT throws_ok(format('SELECT mantle.import_explicit(5, %s, ARRAY[%s], ''{u/}'', ARRAY[%s])', :ns + 1, :ns, :i + 505),
    'MT011', NULL, 'no such namespace to make them in');
SELECT throws_ok(format('SELECT * FROM mantle.stat(%1$s, ARRAY[%1$s], ''{u/}'')', :ns), '42501', NULL, 'reads no entry');
SELECT throws_ok(format($$ SELECT * FROM mantle.mkdir('{5}', ARRAY[%1$s], ARRAY[%1$s], '{w/}', ARRAY[%2$s], '{1}', '{1}', '{448}',
    '{true}', ARRAY['{"a": "b"}']::jsonb[], ARRAY[gen_random_uuid()], '{0}', p_caller => '{0}') $$, :ns, :i + 506),
    '42501', NULL, 'and gives no metadata');
RESET ROLE;
SELECT results_eq(format('SELECT id, owner, grp, mode, explicit, user_metadata FROM mantle.stat(%1$s, ARRAY[%1$s, %1$s],
    ''{u/,late/}'') ORDER BY ord', :ns), format('VALUES (%s::bigint, 7, 8, 493, true, NULL::jsonb), (%s, 7, 8, 493, true, NULL)',
    :i, :i + 501), 'explicit, with owner, group and mode as the root');
SELECT * FROM finish();
ROLLBACK;
