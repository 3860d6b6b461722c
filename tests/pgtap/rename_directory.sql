\ir setup.psql
BEGIN;
SELECT plan(36);
SELECT tap.namespace('tap-rename') AS ns \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/', false) \gset
SELECT new_id AS b FROM tap.mkdir(:ns, :ns, 'b/') \gset
SELECT new_id AS s FROM tap.mkdir(:ns, :a, 's/') \gset
SELECT tap.put(:ns, :s, 'o', 5) AS x \gset
\set request '77777777-0000-0000-0000-000000000000'
PREPARE attempts AS SELECT attempt, state FROM tap.rename_attempts() WHERE ns = $1 AND request_id = $2 ORDER BY attempt;

SELECT is((SELECT code FROM tap.rename(:ns, :a, 's/', :s, :b, 't/', request => :'request', epoch_off => 1)), 'MT024',
    'another epoch');
SELECT is((SELECT code FROM tap.rename(:ns, :a, 's/', :s + 99, :b, 't/', request => :'request')), 'MT026',
    'another source by now');
SELECT is((SELECT code FROM tap.rename(:ns, :a, 'z/', :s, :b, 't/', request => :'request')), 'MT026', 'no source');
SELECT is((SELECT code FROM tap.rename(:ns, :a, 's/', :s, :s, 't/', request => :'request')), 'MT022', 'into itself');
SELECT is((SELECT code FROM tap.rename(:ns, :ns, 'a/', :a, :ns, 'b/', request => :'request')), 'MT012',
    'the destination is there');
SELECT is((SELECT code FROM tap.rename(:ns, :ns, 'a/', :a, :ns, 'a/', request => :'request')), 'MT012', 'onto itself');
SELECT tap.put(:ns, :b, 'obj') AS x \gset
SELECT is((SELECT code FROM tap.rename(:ns, :a, 's/', :s, :b, 'obj/', request => :'request')), 'MT016',
    'an object at the destination');
SELECT is((SELECT code FROM tap.rename(:ns, :a, 's/', :s, :b, 'bad', request => :'request')), 'MT001', 'bad name');
SELECT is((SELECT code FROM tap.rename(:ns, :a, 's/', :s, 0, 't/', request => :'request')), 'MT006',
    'not into the super-root');
SELECT is((SELECT code FROM tap.rename(:ns + 1, :a, 's/', :s, :b, 't/', request => :'request')), 'MT011',
    'no such namespace');
SELECT is_empty(format('EXECUTE attempts(%s, %L)', :ns, :'request'),
    'a refused attempt leaves no row: it has not committed');
SELECT is_empty(format('SELECT FROM tap.requests() WHERE request_id = %L', :'request'), 'an error is no answer');

DELETE FROM mantle.prune_queue;
SELECT results_eq(format('SELECT code, version, replayed FROM tap.rename(%s, %s, ''s/'', %s, %s, ''t/'', request => %L,
    attempt => 7)', :ns, :a, :s, :b, :'request'),
                  'VALUES (NULL::text, 2::bigint, false)', 'moved, a new version');
SELECT results_eq(format('EXECUTE attempts(%s, %L)', :ns, :'request'), 'VALUES (7::bigint, ''committed'')',
    'the attempt has committed');
SELECT is(mantle.abort_rename(5, :ns, :'request', 7), 'committed', 'and cannot be aborted');
SELECT results_eq(format('SELECT code, version, replayed FROM tap.rename(%s, %s, ''s/'', %s, %s, ''t/'', request => %L,
    attempt => 7)', :ns, :a, :s, :b, :'request'),
                  'VALUES (NULL::text, 2::bigint, true)', 'its answer again');
SELECT results_eq(format('SELECT code, version, replayed FROM tap.rename(%s, %s, ''s/'', %s, %s, ''t/'', request => %L,
    attempt => 8)', :ns, :a, :s, :b, :'request'),
                  'VALUES (NULL::text, 2::bigint, true)', 'a later attempt of the same request: the first answer');
SELECT is(mantle.abort_rename(5, :ns, :'request', 8), 'aborted',
    'a replay does not commit its attempt: the lock can be released');
SELECT is((SELECT code FROM tap.rename(:ns, :a, 's/', :s, :b, 't/', request => :'request', attempt => 9, hash => 1)),
    'MT020', 'another request');
SELECT is(mantle.path_of('tap-rename', :s), 'b/t/', 'it is there');
SELECT is((SELECT count(*) FROM mantle.list(:ns, :a, NULL, NULL, 10)), 0::bigint, 'and not here');
SELECT results_eq(format('SELECT entries, subdirectories FROM mantle.dirstat(%s, ARRAY[%s, %s])', :ns, :a, :b),
    'VALUES (0::bigint, 0::bigint), (2, 1)', 'both parents are counted');
SELECT ok(EXISTS (SELECT FROM tap.prune_queue() WHERE id = :a), 'the old parent is implicit: the pruner looks at it');

-- Aborted and superseded attempts.
SELECT is(mantle.abort_rename(5, :ns, '78787878-0000-0000-0000-000000000000', 3), 'aborted', 'aborted first');
SELECT is((SELECT code FROM tap.rename(:ns, :b, 't/', :s, :a, 's/', request => '78787878-0000-0000-0000-000000000000',
    attempt => 3)), 'MT025', 'an aborted attempt moves nothing');
SELECT is((SELECT code FROM tap.rename(:ns, :b, 't/', :s, :a, 's/', request => '78787878-0000-0000-0000-000000000000',
    attempt => 2)), 'MT025', 'an older attempt is refused');
SELECT is(mantle.abort_rename(5, :ns, '78787878-0000-0000-0000-000000000000', 3), 'aborted', 'aborting again');
SELECT is((SELECT code FROM tap.rename(:ns, :b, 't/', :s, :a, 's/', request => '78787878-0000-0000-0000-000000000000',
    attempt => 4)), NULL, 'a newer attempt does');

-- Overwriting.
SELECT new_id AS v FROM tap.mkdir(:ns, :b, 'v/') \gset
SELECT new_id AS w FROM tap.mkdir(:ns, :v, 'w/') \gset
SELECT is((SELECT code FROM tap.rename(:ns, :a, 's/', :s, :b, 'v/', victim => :v)), 'MT017', 'a victim with entries');
SELECT tap.rmdir(:ns, :v, 'w/', :w) AS x \gset
SELECT is((SELECT code FROM tap.rename(:ns, :a, 's/', :s, :b, 'v/', victim => :w)), 'MT012',
    'another victim than prepared');
SELECT is((SELECT code FROM tap.rename(:ns, :a, 's/', :s, :b, 'v/', victim => :v)), NULL,
    'an empty victim is replaced');
SELECT is((SELECT code FROM tap.put(:ns, :v, 'late')), 'MT018', 'the victim has a tombstone');
SELECT results_eq(format('SELECT entries, subdirectories FROM mantle.dirstat(%s, ARRAY[%s, %s])', :ns, :a, :b),
    'VALUES (0::bigint, 0::bigint), (2, 1)', 'counted once');
SELECT is((SELECT code FROM tap.rename(:ns, :ns, 'a/', :a, :v, 'a/')), 'MT018', 'not into a removed directory');
SELECT is((SELECT key FROM mantle.list_tree(:ns, :ns, 'b/v/o', NULL, 1, '0')), 'b/v/o', 'objects below moved along');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');
SELECT * FROM finish();
ROLLBACK;
