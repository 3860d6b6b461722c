-- Recursive removal: one transaction moves the tree into the trash. The worker's step, called here, empties it
-- bottom-up.
\ir setup.psql
BEGIN;
SELECT plan(49);
SELECT tap.namespace('tap-remove-tree') AS ns \gset
SELECT new_id AS t FROM tap.mkdir(:ns, :ns, 't/') \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :t, 'a/', false) \gset
SELECT new_id AS b FROM tap.mkdir(:ns, :a, 'b/') \gset
SELECT new_id AS e FROM tap.mkdir(:ns, :t, 'e/') \gset
SELECT count(tap.mkdir(:ns, :t, 'many' || i || '/')) AS x FROM generate_series(1, 120) i \gset
SELECT count(tap.put(:ns, m.id, 'o', 2)) AS x FROM mantle.list(:ns, :t, NULL, 'many', 1000) m \gset
SELECT count(tap.put(:ns, :b, 'o' || i, 10)) AS x FROM generate_series(1, 25) i \gset
SELECT tap.put(:ns, :t, 'x', 3) AS x \gset
SELECT new_id AS k FROM tap.mkdir(:ns, :ns, 'keep/') \gset
SELECT tap.put(:ns, :k, 'o', 5) AS x \gset
ANALYZE mantle.meta;
\set request '88888888-0000-0000-0000-000000000000'
\set operation '88888888-0000-0000-0000-000000000001'
-- Refusals.
SELECT is((SELECT code FROM tap.remove_tree(:ns, :ns, 't/', :t, request => :'request', epoch_off => 1)), 'MT024',
    'another epoch');
SELECT is((SELECT code FROM tap.remove_tree(:ns, :ns, 't/', :a, request => :'request')), 'MT026',
    'another source by now');
SELECT is((SELECT code FROM tap.remove_tree(:ns, :ns, 'u/', :t, request => :'request')), 'MT026', 'no source');
SELECT is((SELECT code FROM tap.remove_tree(:ns + 1, :ns, 't/', :t, request => :'request')), 'MT011',
    'no such namespace');
SELECT is((SELECT code FROM tap.remove_tree(:ns, :ns, 'x', :t, request => :'request')), 'MT001', 'not an object');
SELECT is((SELECT code FROM tap.remove_tree(:ns, 0, 'tap-remove-tree/', :ns, request => :'request')), 'MT006',
    'not a namespace''s root');
SELECT is((SELECT code FROM tap.remove_tree(:ns, 1, :t || '/', :t, request => :'request')), 'MT006',
    'not out of the trash');
SELECT is((SELECT code FROM tap.remove_tree(:ns, :ns, 't/', :t, request => :'request', operation => NULL)), 'MT006',
    'an operation has an id');
SELECT is(mantle.abort_rename(5, :ns, :'request', 3), 'aborted', 'aborted first');
SELECT is((SELECT code FROM tap.remove_tree(:ns, :ns, 't/', :t, request => :'request', attempt => 3)), 'MT025',
    'an aborted attempt removes nothing');
SELECT is((SELECT code FROM tap.remove_tree(:ns, :ns, 't/', :t, request => :'request', attempt => 2)), 'MT025',
    'an older attempt is refused');
SELECT is_empty(format('SELECT FROM tap.requests() WHERE ns = %s AND request_id = %L', :ns, :'request'),
    'an error is no answer');
SELECT is_empty('SELECT FROM tap.operations()', 'and starts nothing');

-- The removal.
SELECT results_eq(format('SELECT * FROM tap.remove_tree(%s, %s, ''t/'', %s, request => %L, attempt => 7,
    operation => %L)', :ns, :ns, :t, :'request', :'operation'),
                  format('VALUES (NULL::text, %s::bigint, 2::bigint, false)', :t), 'removed, a new version');
SELECT is(mantle.abort_rename(5, :ns, :'request', 7), 'committed', 'its attempt has committed');
SELECT results_eq(format('SELECT * FROM tap.remove_tree(%s, %s, ''t/'', %s, request => %L, attempt => 8,
    operation => %L)', :ns, :ns, :t, :'request', :'operation'),
                  format('VALUES (NULL::text, %s::bigint, 2::bigint, true)', :t),
                      'a later attempt of the same request: the first answer');
SELECT is((SELECT code FROM tap.remove_tree(:ns, :ns, 't/', :t, request => :'request', attempt => 9, hash => 1)),
    'MT020', 'another request');
SELECT results_eq(format('SELECT pid, name, version FROM tap.meta() WHERE id = %s', :t),
    format('VALUES (1::bigint, ''%s/''::text COLLATE "C", 2::bigint)', :t), 'it is in the trash');
SELECT is(mantle.path_of('tap-remove-tree', :b), NULL, 'a directory below has no path any more');
SELECT is((SELECT depth FROM mantle.resolve_path('tap-remove-tree', '{t,a}')), 0, 'no path resolves to it');
SELECT set_eq(format('SELECT name FROM mantle.list(%s, %s, NULL, NULL, 10)', :ns, :ns), ARRAY['keep/'],
    'its place is empty');
SELECT results_eq(format('SELECT entries, subdirectories FROM mantle.dirstat(%s, ARRAY[%s])', :ns, :ns),
    'VALUES (1::bigint, 1::bigint)', 'the parent is counted');
SELECT is(EXISTS (SELECT FROM tap.prune_queue() WHERE id = :ns), mantle.is_distributed(),
    'the pruner looks at it only where this node does not know that it stays');
SELECT results_eq(format('SELECT state, directory_id, objects, directories, bytes FROM mantle.operation(5, %L)',
    :'operation'),
                  format('VALUES (''running'', %s::bigint, 0::bigint, 0::bigint, 0::bigint)', :t),
                      'the operation runs');
SELECT is_empty(format('SELECT * FROM mantle.operation(6, %L)', :'operation'),
    'another principal does not see the operation');
SELECT is((SELECT state FROM mantle.operation(0, :'operation')), 'running', 'but the superuser does');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');
SELECT is_empty('SELECT * FROM tap.meta() WHERE pid = 1 AND id IS NULL', 'the trash is not counted');

-- Emptying.
INSERT INTO mantle.prune_queue (pid, seq, id, queued) SELECT m.pid, -m.id, m.id, now() - interval '1 day'
    FROM tap.meta() m WHERE m.id IN (:a, :e);
CREATE FUNCTION pg_temp.steps(of_ns bigint, wanted int) RETURNS TABLE (n bigint, damage text) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..wanted LOOP
        n := mantle.run_maintenance('empty_trash');
        damage := (SELECT string_agg(d.problem || ' ' || d.name, ', ') FROM tap.damage(of_ns) AS d);
        RETURN NEXT;
        EXIT WHEN n = 0;
    END LOOP;
END $$;
SELECT results_eq(format('SELECT objects, directories FROM mantle.empty_directories(%s, ''{}'', 1000)', :ns),
    'VALUES (0::bigint, 0::bigint)', 'a step that gets no latch does nothing');
SELECT results_eq(format('SELECT n > 0, damage FROM pg_temp.steps(%s, 1)', :ns), 'VALUES (true, NULL::text)',
    'a step removes something, and leaves no damage');
SELECT ok((SELECT state = 'running' AND objects + directories > 0 FROM mantle.operation(5, :'operation')),
    'which the operation tells');
SELECT is((SELECT code FROM tap.put(:ns, :b, 'late', 7)), NULL,
    'a create that resolved its directory before may come late');
SELECT ok(mantle.is_in_trash(:b) AND NOT mantle.is_in_trash(:k), 'is_in_trash tells directories in the trash apart');
SELECT ok((SELECT bool_and(damage IS NULL) AND count(*) < 30 FROM pg_temp.steps(:ns, 100)),
    'few steps empty it, none leaves damage');
SELECT results_eq(format('SELECT state, objects, directories, bytes FROM mantle.operation(5, %L)', :'operation'),
                  'VALUES (''done'', 147::bigint, 124::bigint, 500::bigint)', 'everything is counted');
SELECT ok((SELECT finished >= created FROM mantle.operation(5, :'operation')), 'and when it ended');
SELECT is_empty('SELECT * FROM tap.meta() WHERE pid = 1', 'the trash is empty');
SELECT is((SELECT count(*) FROM tap.meta() WHERE ns = :ns AND id IS NOT NULL), 3::bigint, 'the rest is as it was');
SELECT is((SELECT count(*) FROM tap.meta() WHERE ns = :ns AND removed), 124::bigint, 'tombstones are left');
SELECT is((SELECT code FROM tap.put(:ns, :b, 'later')), 'MT018', 'and refuse creates');
SELECT is(mantle.run_maintenance('empty_trash'), 0::bigint, 'nothing left to do');

-- Pruning leaves implicit directories in the trash to the operation. A namespace is deleted while its trash is
-- emptied. Two operations alternate.
SELECT new_id AS i FROM tap.mkdir(:ns, :ns, 'i/', false) \gset
SELECT new_id AS j FROM tap.mkdir(:ns, :i, 'j/', false) \gset
SELECT new_id AS h FROM tap.mkdir(:ns, :ns, 'h/') \gset
SELECT count(tap.put(:ns, :h, 'o' || i)) AS x FROM generate_series(1, 1100) i \gset
SELECT mantle.compact(:h) AS x \gset
ANALYZE mantle.meta;
SELECT code AS x FROM tap.remove_tree(:ns, :ns, 'h/', :h, operation => '88888888-0000-0000-0000-000000000002') \gset
SELECT code AS x FROM tap.remove_tree(:ns, :ns, 'i/', :i, operation => '88888888-0000-0000-0000-000000000003') \gset
DELETE FROM mantle.prune_queue;
INSERT INTO mantle.prune_queue (pid, seq, id, queued) VALUES (:i, -1, :j, now() - interval '1 day'),
    (:i, -2, :i, now() - interval '1 day');
SELECT mantle.run_maintenance('prune') + mantle.run_maintenance('prune') AS x \gset
SELECT is((SELECT count(*) FROM tap.meta() WHERE id IN (:i, :j)), 2::bigint, 'the pruner leaves the trash alone');
SELECT tap.delete(:ns, :k, 'o') AS x \gset
SELECT tap.rmdir(:ns, :ns, 'keep/', :k) AS x \gset
SELECT is((SELECT code FROM mantle.delete_namespace(0, 'tap-remove-tree', gen_random_uuid(), 0)), NULL,
    'a namespace with nothing but trash is empty');
SELECT mantle.run_maintenance('empty_trash') + mantle.run_maintenance('empty_trash') > 0 AS x \gset
SELECT is((SELECT count(*) FROM tap.operations() WHERE state = 'running' AND stepped = created), 0::bigint,
    'each has had its turn');
SELECT ok((SELECT bool_and(damage IS NULL) FROM pg_temp.steps(:ns, 100)), 'emptied without damage');
SELECT results_eq('SELECT state, objects, directories FROM tap.operations()
    WHERE id >= ''88888888-0000-0000-0000-000000000002'' ORDER BY id',
                  'VALUES (''done'', 1100::bigint, 1::bigint), (''done'', 0, 2)', 'both are done');
SELECT is((SELECT count(*) FROM tap.meta() WHERE ns = :ns AND id IS NOT NULL), 0::bigint,
    'nothing is left of the namespace');

-- Purging.
UPDATE mantle.operations SET finished = now() - interval '2 days' WHERE id = :'operation';
SELECT is(mantle.run_maintenance('purge_operations'), 1::bigint, 'old operations are purged');
SELECT is((SELECT count(*) FROM tap.operations()), 2::bigint, 'new ones are not');
SELECT * FROM finish();
ROLLBACK;
