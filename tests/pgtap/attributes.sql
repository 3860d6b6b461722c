\ir setup.psql
SELECT plan(22);
SELECT tap.namespace('tap-attributes') AS ns \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SELECT new_id AS o FROM tap.put(:ns, :ns, 'o') \gset
CREATE FUNCTION pg_temp.setattr(ns bigint, pid bigint, name text, id bigint, owner int, mode int,
    meta jsonb DEFAULT NULL,
    request uuid DEFAULT gen_random_uuid(), hash bigint DEFAULT 0, explicit boolean DEFAULT NULL,
    OUT code text, OUT version bigint, OUT replayed boolean)
LANGUAGE sql AS $$
    SELECT s.code, s.version, s.replayed FROM mantle.set_attributes('{5}', ARRAY[ns], ARRAY[pid], ARRAY[name],
        ARRAY[id], ARRAY[owner],
        '{NULL}', ARRAY[mode], ARRAY[meta], ARRAY[explicit], ARRAY[request], ARRAY[hash], p_caller => '{0}') AS s
$$;
SELECT results_eq(format('SELECT * FROM pg_temp.setattr(%s, %s, ''a/'', %s, 9, NULL, ''{"k": 1}'',
    ''88888888-0000-0000-0000-000000000000'')', :ns, :ns, :a),
                  'VALUES (NULL::text, 2::bigint, false)', 'a directory');
SELECT results_eq(format('SELECT owner, grp, mode, version, user_metadata FROM mantle.stat(%s, ARRAY[%s], ''{a/}'')',
    :ns, :ns),
                  $$ VALUES (9, 8, 493, 2::bigint, '{"k": 1}'::jsonb) $$, 'NULL leaves as it is');
SELECT results_eq(format('SELECT * FROM pg_temp.setattr(%s, %s, ''a/'', %s, 9, NULL, NULL,
    ''88888888-0000-0000-0000-000000000000'')', :ns, :ns, :a),
                  'VALUES (NULL::text, 2::bigint, true)', 'replayed');
SELECT is((SELECT code FROM pg_temp.setattr(:ns, :ns, 'a/', :a, 9, NULL, NULL, '88888888-0000-0000-0000-000000000000',
    1)), 'MT020', 'another request');
SELECT is((SELECT code FROM pg_temp.setattr(:ns, :ns, 'o', :o, NULL, 384)), NULL, 'an object');
SELECT is((SELECT mode FROM mantle.stat(:ns, ARRAY[:ns], '{o}')), 384, 'changed');
SELECT is((SELECT code FROM pg_temp.setattr(:ns, :ns, 'x', :o, 1, 384)), 'MT010', 'not there');
SELECT is((SELECT code FROM pg_temp.setattr(:ns, :ns, 'o', :a, 1, 384)), 'MT018', 'another one by now');
SELECT is((SELECT code FROM pg_temp.setattr(:ns, :ns, 'o', :o, 1, 1024)), 'MT006', 'bad mode');
SELECT is((SELECT code FROM pg_temp.setattr(:ns, :ns, '/_ATTR', :o, 1, 1)), 'MT001', 'not the attribute record');
SELECT is((SELECT code FROM pg_temp.setattr(:ns + 1, :ns, 'o', :o, 1, 1)), 'MT011', 'no such namespace');
SELECT is((SELECT code FROM pg_temp.setattr(:ns, 0, 'tap-attributes/', :ns, 42, NULL)), NULL, 'the root');
SELECT is((SELECT owner FROM mantle.namespace('tap-attributes')), 42, 'its owner is the namespace''s');

-- explicit becomes false: an S3 directory marker is deleted while entries are below.
SELECT new_id AS e FROM tap.mkdir(:ns, :ns, 'e/') \gset
SELECT tap.put(:ns, :e, 'o') AS x \gset
DELETE FROM mantle.prune_queue;
SELECT is((SELECT code FROM pg_temp.setattr(:ns, :ns, 'o', :o, NULL, NULL, explicit => false)), 'MT006',
    'an object is not explicit');
SELECT is((SELECT code FROM pg_temp.setattr(:ns, 0, 'tap-attributes/', :ns, NULL, NULL, explicit => false)), 'MT006',
    'the root stays');
SELECT results_eq(format('SELECT * FROM pg_temp.setattr(%s, %s, ''e/'', %s, NULL, NULL, explicit => false)', :ns, :ns,
    :e),
                  'VALUES (NULL::text, 2::bigint, false)', 'made implicit');
SELECT is((SELECT explicit FROM mantle.stat(:ns, ARRAY[:ns], '{e/}')), false, 'so it is');
SELECT ok(EXISTS (SELECT FROM tap.prune_queue() WHERE id = :e),
    'its last entry may have gone meanwhile: the pruner looks');
SELECT is((SELECT code FROM pg_temp.setattr(:ns, :ns, 'e/', :e, 9, NULL)), NULL, 'NULL');
SELECT is((SELECT explicit FROM mantle.stat(:ns, ARRAY[:ns], '{e/}')), false, 'leaves as it is');
SELECT is((SELECT code FROM pg_temp.setattr(:ns, :ns, 'e/', :e, NULL, NULL, explicit => true)), NULL,
    'and explicit again');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');
SELECT * FROM finish();
