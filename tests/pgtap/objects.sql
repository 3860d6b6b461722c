\ir setup.psql
BEGIN;
SELECT plan(50);
SELECT tap.namespace('tap-objects') AS ns \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SELECT new_id AS b FROM tap.mkdir(:ns, :ns, 'b/') \gset
SELECT tap.id() AS id \gset

SELECT results_eq(format('SELECT code, new_id, version, replayed, old_locator FROM tap.put(%s, %s, ''o'', 10,
    locator => ''l1'', id => %s, request => ''44444444-0000-0000-0000-000000000000'')', :ns, :a, :id),
                  format('VALUES (NULL::text, %s::bigint, 1::bigint, false, NULL::text)', :id), 'created');
SELECT results_eq(format('SELECT code, new_id, version, replayed, old_locator FROM tap.put(%s, %s, ''o'', 10,
    locator => ''l9'', request => ''44444444-0000-0000-0000-000000000000'')', :ns, :a),
                  format('VALUES (NULL::text, %s::bigint, 1::bigint, true, NULL::text)', :id), 'replayed');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'o', request => '44444444-0000-0000-0000-000000000000', hash => 1)),
    'MT020', 'another request');
SELECT results_eq(format('SELECT code, new_id, version, old_locator FROM tap.put(%s, %s, ''o'', 30,
    locator => ''l2'')', :ns, :a),
                  format('VALUES (NULL::text, %s::bigint, 2::bigint, ''l1'')', :id),
                      'overwritten: same id, next version, the old locator');
SELECT is((SELECT bytes FROM mantle.dirstat(:ns, ARRAY[:a])), 30::numeric::bigint, 'bytes follow');
SELECT is((SELECT code FROM tap.put(:ns, :ns, 'a')), 'MT015', 'a directory of that name');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'x/')), 'MT001', 'a slash');
SELECT is((SELECT code FROM tap.put(:ns, :a, '/_ATTR')), 'MT001', 'not the attribute record');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'x', -1)), 'MT006', 'a negative size');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'x', request => NULL)), 'MT006', 'no request id');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'x', id => 1::bigint << 60)), 'MT040', 'id outside every block');
SELECT is((SELECT code FROM tap.put(:ns + 1, :a, 'x')), 'MT011', 'no such namespace');

-- Conditions.
SELECT is((SELECT code FROM tap.put(:ns, :a, 'o', condition => '*absent')), 'MT019',
    'If-None-Match: * on one that is there');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'c', condition => '*absent', etag => 'e1')), NULL,
    'If-None-Match: * on a new one');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'c', condition => 'e2')), 'MT019', 'If-Match, another etag');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'c', condition => 'e1', etag => 'e2')), NULL, 'If-Match, this etag');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'c', condition => '*present')), NULL, 'If-Match: *');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'd', condition => '*present')), 'MT019', 'If-Match: * on none');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'c', condition => '!other')), NULL, 'If-None-Match: another etag');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'c', condition => '!etag')), 'MT019', 'If-None-Match: its etag');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'd', condition => 'e1')), 'MT019', 'If-Match on none');

-- Deletes of one version only.
SELECT new_id AS x FROM tap.put(:ns, :a, 'x', id => tap.id()) \gset
SELECT is((SELECT code FROM tap.delete(:ns, :a, 'x', old_id => :x, old_version => 2)), 'MT019', 'another version');
SELECT is((SELECT code FROM tap.delete(:ns, :a, 'x', old_id => :x + 1, old_version => 1)), 'MT019', 'another object');
SELECT is((SELECT code FROM tap.delete(:ns, :a, 'x', old_id => :x, old_version => 1,
    request => '44444444-0000-0000-0000-000000000001')), NULL, 'this one');
SELECT is((SELECT code FROM tap.delete(:ns, :a, 'x', old_id => :x, old_version => 1)), 'MT010', 'it is gone');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'x', id => tap.id())), NULL, 'there is another one');
SELECT results_eq(format($$ SELECT code, replayed FROM tap.delete(%s, %s, 'x', old_id => %s, old_version => 1,
    request => '44444444-0000-0000-0000-000000000001') $$, :ns, :a, :x), 'VALUES (NULL::text, true)', 'a retry');
SELECT tap.delete(:ns, :a, 'x') AS x \gset

-- Two elements with one name in a batch run in the order given.
SELECT results_eq(format($$
    SELECT ord, code, version FROM mantle.put_object('{5,5}', array_fill(%s::bigint, ARRAY[2]), ARRAY[%s, %s], '{t,t}',
        ARRAY[tap.id(), tap.id()], '{1,1}', '{1,1}',
        '{420,420}', '{10,30}', '{e,f}', '{t,t}', ARRAY[NULL, NULL]::jsonb[], '{l,m}', '{NULL,NULL}',
        ARRAY[gen_random_uuid(), gen_random_uuid()], '{0,0}', p_caller => '{0,0}') ORDER BY ord $$, :ns, :b, :b),
    $$ VALUES (1, NULL::text, 1::bigint), (2, NULL, 2) $$, 'the second overwrites the first');
SELECT results_eq(format('SELECT entries, bytes FROM mantle.dirstat(%s, ARRAY[%s])', :ns, :b),
    'VALUES (1::bigint, 30::bigint)', 'counted so');
SELECT cmp_ok((SELECT count(*) FROM tap.meta() WHERE pid = :b AND name = '/_ATTR'), '<=', 2::bigint,
    'at most one delta a directory and batch');

-- stat
SELECT results_eq(format('SELECT ord, code, id, owner, grp, mode, size, synthetic, etag, content_type, locator
    FROM mantle.stat(%s, ARRAY[%s, %s], ''{o,nope}'')', :ns, :a, :a),
                  format($$ VALUES (1, NULL::text, %s::bigint, 7, 8, 420, 30::bigint, false, 'etag', 'text/plain',
                      'l2'), (2, 'MT010', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL) $$, :id), 'stat');
SELECT is((SELECT code FROM mantle.stat(:ns + 1, ARRAY[:a], '{o}')), 'MT010', 'another namespace does not see it');

-- rename_object
SELECT is((SELECT code FROM mantle.rename_object(5, :ns, :a, 'nope', :b, 'x', false, gen_random_uuid(), 0,
    p_caller => '0')), 'MT010',
    'no source');
SELECT is((SELECT code FROM mantle.rename_object(5, :ns, :a, 'o', :b, 't', false, gen_random_uuid(), 0,
    p_caller => '0')), 'MT012',
    'the destination is there');
SELECT is((SELECT code FROM mantle.rename_object(5, :ns, :a, 'o', :ns, 'b', true, gen_random_uuid(), 0,
    p_caller => '0')), 'MT015',
    'the destination is a directory');
SELECT is((SELECT code FROM mantle.rename_object(5, :ns, :a, 'o', :b, 'x/', true, gen_random_uuid(), 0,
    p_caller => '0')), 'MT001',
    'bad name');
SELECT is((SELECT code FROM mantle.rename_object(5, :ns, :a, 'o', NULL, 'x', true, gen_random_uuid(), 0,
    p_caller => '0')), 'MT006',
    'no destination');
SELECT results_eq(format('SELECT code, id, replayed, old_locator FROM mantle.rename_object(5, %s, %s, ''o'', %s, ''t'',
    true, ''55555555-0000-0000-0000-000000000000'', 0, p_caller => ''0'')', :ns, :a, :b),
                  format('VALUES (NULL::text, %s::bigint, false, ''m'')', :id),
                      'moved over another one, whose locator is free');
SELECT results_eq(format('SELECT code, id, replayed, old_locator FROM mantle.rename_object(5, %s, %s, ''o'', %s, ''t'',
    true, ''55555555-0000-0000-0000-000000000000'', 0, p_caller => ''0'')', :ns, :a, :b),
                  format('VALUES (NULL::text, %s::bigint, true, NULL::text)', :id), 'replayed');
SELECT is((SELECT code FROM mantle.rename_object(5, :ns, :b, 't', :b, 't', true, gen_random_uuid(), 0,
    p_caller => '0')), NULL,
    'onto itself: nothing to do');
SELECT results_eq(format('SELECT entries, bytes FROM mantle.dirstat(%s, ARRAY[%s, %s])', :ns, :a, :b),
    'VALUES (1::bigint, 1::bigint), (1, 30)', 'counts moved');

-- delete
SELECT results_eq(format('SELECT * FROM tap.delete(%s, %s, ''t'', ''66666666-0000-0000-0000-000000000000'')', :ns, :b),
    $$ VALUES (NULL::text, false, 'l2') $$, 'deleted: the locator is free');
SELECT results_eq(format('SELECT * FROM tap.delete(%s, %s, ''t'', ''66666666-0000-0000-0000-000000000000'')', :ns, :b),
    $$ VALUES (NULL::text, true, NULL::text) $$, 'replayed');
SELECT is((SELECT code FROM tap.delete(:ns, :b, 't')), 'MT010', 'gone');
SELECT is((SELECT code FROM tap.delete(:ns, :ns, 'a/')), 'MT001', 'not a directory');
SELECT is((SELECT code FROM tap.delete(:ns + 1, :a, 'c')), 'MT011', 'no such namespace');
SELECT is((SELECT code FROM mantle.rename_object(5, :ns, :a, 'c', (SELECT r.id FROM tap.meta() r WHERE r.pid = :ns
    AND r.name = 'b/'), 'c', false, gen_random_uuid(), 0, p_caller => '0')), NULL, 'moved');
-- Values are stored as given; sums are bigints.
SELECT code FROM mantle.put_object('{5}', ARRAY[:ns], ARRAY[:a], '{exact}', ARRAY[tap.id()], '{7}', '{8}', '{420}',
    '{1}', '{e}', '{t}',
    ARRAY['{"n": 12345678901234567890123, "d": 1.10}']::jsonb[], '{l3}', '{NULL}', ARRAY[gen_random_uuid()],
        '{0}', p_caller => '{0}') \gset
SELECT is((SELECT m.user_metadata::text FROM tap.meta() m WHERE m.pid = :a AND m.name = 'exact'),
    '{"d": 1.10, "n": 12345678901234567890123}',
          'numbers of any size');
SELECT results_eq(format($$ SELECT ord, code FROM mantle.put_object('{5,5}', ARRAY[%1$s,%1$s], ARRAY[%2$s,%2$s],
    '{huge,huger}', ARRAY[tap.id(), tap.id()],
    '{7,7}', '{8,8}', '{420,420}', array_fill(1::bigint << 62, ARRAY[2]), '{e,e}', '{t,t}', ARRAY[NULL, NULL]::jsonb[],
        '{l4,l5}', '{NULL,NULL}',
    ARRAY[gen_random_uuid(), gen_random_uuid()], '{0,0}', p_caller => '{0,0}') ORDER BY ord $$, :ns, :b),
        $$ VALUES (1, 'MT006'), (2, 'MT006') $$, 'two objects of 4 EiB');

SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');
SELECT * FROM finish();
ROLLBACK;
