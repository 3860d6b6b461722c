-- Volumes and their segments: mounts, leases, the fence of puts (P59), and what rows name in a segment (P61).
\ir setup.psql
BEGIN;
SELECT plan(98);
SELECT mantle.cluster_id() AS cluster, split_part(mantle.lineage(), '/', 2)::bigint << 20 AS least \gset
SELECT tap.namespace('tap-volumes') AS ns \gset
CREATE FUNCTION pg_temp.mount(
    v int, epoch bigint, owner text DEFAULT 'a', segments int DEFAULT 3, blocks bigint DEFAULT 100,
    cluster uuid DEFAULT mantle.cluster_id())
RETURNS void LANGUAGE sql AS $$ SELECT mantle.mount_volume(cluster, v, epoch, 4096, blocks, segments, owner) $$;
CREATE FUNCTION pg_temp.at(v int, segment int, epoch bigint, id bigint) RETURNS text LANGUAGE sql AS $$
    SELECT format('v1:%s.%s.%s/1.%s/%s+10', v, segment, epoch, id, id) $$;
-- On every node, as a gateway does it.
CREATE FUNCTION pg_temp.admit(v int, mount bigint, segments int[], epochs bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE n bigint;
BEGIN
    FOR n IN SELECT * FROM mantle.volume_nodes() LOOP
        PERFORM mantle.admit_segments(n, v, mount, segments, epochs);
    END LOOP;
END $$;

-- A new volume.
PREPARE register AS SELECT mantle.register_volume($1, $2, $3, $4, $5);
SELECT throws_ok(format('EXECUTE register(%L, ''n'', 4096, 100, 3)', gen_random_uuid()), 'MT006', NULL,
    'of another cluster');
SELECT throws_ok(format('EXECUTE register(%L, ''n'', %s, 100, 3)', :'cluster', b), 'MT006', NULL, 'blocks of ' || b)
  FROM unnest('{0,256,4095,131072}'::int[]) AS b;
SELECT throws_ok(format('EXECUTE register(%L, ''n'', 4096, %s, 3)', :'cluster', b), 'MT006', NULL, b || ' blocks')
  FROM unnest('{0,2147483649}'::bigint[]) AS b;
SELECT throws_ok(format('EXECUTE register(%L, ''n'', 4096, 100, %s)', :'cluster', s), 'MT006', NULL, s || ' segments')
  FROM unnest('{0,16777217}'::int[]) AS s;
SELECT throws_ok(format('EXECUTE register(%L, ''n'', 4096, 100, NULL)', :'cluster'), 'MT006', NULL, 'no segments');
SELECT throws_ok(format('EXECUTE register(%L, '''', 4096, 100, 3)', :'cluster'), 'MT006', NULL, 'without a name');
SELECT mantle.register_volume(:'cluster', 'tap', 4096, 100, 3) AS v \gset
SELECT mantle.register_volume(:'cluster', 'tap', 4096, 100, 12) AS w \gset
SELECT is(:w, :v + 1, 'each has a number of its own');
SELECT is_empty('SELECT * FROM mantle.volume(2147483647)', 'one that is not registered');
SELECT results_eq(format('SELECT * FROM mantle.volume(%s)', :v),
    format($$ VALUES (%s, 'tap', 4096, 100::bigint, 3, 0::bigint, NULL::text, NULL::timestamptz, 'active') $$, :v),
    'and one that was never mounted');

-- Mounts.
SELECT throws_ok('SELECT pg_temp.mount(2147483647, 1)', 'MT058', NULL, 'an unknown volume');
SELECT throws_ok(format('SELECT pg_temp.mount(%s, 1, blocks => 101)', :v), 'MT006', NULL, 'of other sizes');
SELECT throws_ok(format('SELECT pg_temp.mount(%s, 1, cluster => %L)', :v, gen_random_uuid()), 'MT006', NULL,
    'of another cluster');
SELECT throws_ok(format('SELECT pg_temp.mount(%s, 0)', :v), 'MT006', NULL, 'without an epoch');
SELECT throws_ok(format('SELECT pg_temp.mount(%s, 1, '''')', :v), 'MT006', NULL, 'by nobody');
SELECT lives_ok(format('SELECT pg_temp.mount(%s, 5)', :v), 'a mount');
SELECT lives_ok(format('SELECT pg_temp.mount(%s, 5)', :v), 'recorded again');
SELECT throws_ok(format('SELECT pg_temp.mount(%s, 4)', :v), 'MT059', NULL, 'an old copy');
SELECT throws_ok(format('SELECT pg_temp.mount(%s, 5, ''b'')', :v), 'MT059', NULL, 'a copy of this mount');
SELECT throws_ok(format('SELECT pg_temp.mount(%s, 6, segments => 2)', :v), 'MT059', NULL, 'a copy before it grew');
SELECT throws_ok(format('SELECT * FROM mantle.lease_segments(%s, 4, 1, true)', :v), 'MT059', NULL,
    'an older mount leases nothing');
SELECT throws_ok(format('SELECT * FROM mantle.take_over_segments(%s, 6, NULL)', :v), 'MT059', NULL,
    'nor one that is not recorded');
SELECT throws_ok(format('SELECT mantle.release_segments(%s, 4, NULL)', :v), 'MT059', NULL, 'nor gives it any up');

-- Leases.
PREPARE lease AS SELECT segment, epoch - $1, was_used FROM mantle.lease_segments($2, $3, $4, $5);
SELECT throws_ok(format('EXECUTE lease(%s, %s, 5, 0, true)', :least, :v), 'MT006', NULL, 'no number of segments');
SELECT throws_ok(format('EXECUTE lease(%s, %s, 5, 1, NULL)', :least, :v), 'MT006', NULL, 'used or not');
SELECT results_eq(format('EXECUTE lease(%s, %s, 5, 2, true)', :least, :v),
    'VALUES (0, 0::bigint, false), (1, 0, false)', 'two segments that were never used');
SELECT results_eq(format('EXECUTE lease(%s, %s, 5, 2, false)', :least, :v), 'VALUES (2, 0::bigint, false)', 'the last');
SELECT is_empty(format('EXECUTE lease(%s, %s, 5, 2, false)', :least, :v), 'there are no more');
SELECT lives_ok(format('SELECT pg_temp.mount(%s, 5, segments => 4)', :v), 'it has grown');
SELECT results_eq(format('EXECUTE lease(%s, %s, 5, 2, false)', :least, :v), 'VALUES (3, 0::bigint, false)', 'by one');
SELECT lives_ok(format('SELECT mantle.release_segments(%s, 5, ''{1,3}'')', :v), 'given up');
SELECT is_empty(format('EXECUTE lease(%s, %s, 5, 2, true)', :least, :v), 'they were used');
SELECT lives_ok(format('SELECT mantle.set_volume_state(%s, ''read_only'')', :v), 'nothing is to be written');
SELECT is_empty(format('EXECUTE lease(%s, %s, 5, 2, false)', :least, :v), 'so no segment is leased');
SELECT lives_ok(format('SELECT mantle.set_volume_state(%s, ''active'')', :v), 'it is to be written again');
SELECT results_eq(format('EXECUTE lease(%s, %s, 5, 1, false)', :least, :v), 'VALUES (1, 1::bigint, true)',
    'a segment under its next epoch');
SELECT results_eq(format('SELECT * FROM mantle.volume_status() WHERE volume = %s', :v),
    format($$ SELECT %s, 'tap', 'active', 'a', now(), 5::bigint, 4096, 100::bigint, 4, 3, 1, 0, true $$, :v), 'all that');
SELECT throws_ok(format('SELECT mantle.set_volume_state(%s, ''new'')', :v), 'MT006', NULL, 'no such state');
SELECT throws_ok('SELECT mantle.set_volume_state(2147483647, ''lost'')', 'MT058', NULL, 'no such volume');
SELECT lives_ok(format('SELECT pg_temp.mount(%s, 7, ''b'', 4)', :v), 'mounted elsewhere');
SELECT is_empty(format('EXECUTE lease(%s, %s, 7, 1, true)', :least, :v), 'what the first mount had, it still has');
SELECT results_eq(
    format('SELECT segment, epoch - %s FROM mantle.take_over_segments(%s, 7, ''{0}'')', :least, :v),
    'VALUES (0, 1::bigint)', 'taken over');
SELECT set_eq(format('SELECT segment, epoch - %s FROM mantle.take_over_segments(%s, 7, NULL)', :least, :v),
    'VALUES (0, 2::bigint), (1, 2), (2, 1)', 'all that somebody had');

-- The fence.
SELECT is((SELECT code FROM tap.put(:ns, :ns, 'o', locator => pg_temp.at(:v, 0, :least + 2, 1))), 'MT048',
    'no node admits the epoch');
SELECT throws_ok(format('SELECT pg_temp.admit(%s, 5, ''{0}'', ''{%s}'')', :v, :least + 2), 'MT059', NULL,
    'an older mount admits nothing');
SELECT throws_ok(format('SELECT pg_temp.admit(%s, 7, ''{0}'', ''{%s}'')', :v, :least + 1), 'MT048', NULL,
    'nor is an older epoch admitted');
SELECT throws_ok(format('SELECT pg_temp.admit(%s, 7, ''{3}'', ''{%s}'')', :v, :least), 'MT048', NULL,
    'nor what nobody has');
SELECT throws_ok(format('SELECT pg_temp.admit(%s, 7, %L, %L)', :v, s, e), 'MT006', NULL, s || ' and ' || e)
  FROM (VALUES ('{}', '{}'), ('{0,1}', '{1}'), ('{0,0}', '{1,1}'), (NULL, '{1}')) AS a(s, e) WHERE s IS NOT NULL;
SELECT lives_ok(format('SELECT pg_temp.admit(%s, 7, ''{1,0}'', ''{%s,%s}'')', :v, :least + 2, :least + 2), 'admitted');
SELECT lives_ok(format('SELECT pg_temp.admit(%s, 7, ''{1,0}'', ''{%s,%s}'')', :v, :least + 2, :least + 2), 'again');
SELECT is((SELECT code FROM tap.put(:ns, :ns, 'o', locator => pg_temp.at(:v, 0, :least + 2, 1),
    request => '00000000-0000-4000-8000-0000000f3ce0')), NULL, 'a new object');
SELECT is((SELECT code FROM tap.put(:ns, :ns, 'o', locator => pg_temp.at(:v, 1, :least + 2, 2))), NULL, 'over it');
SELECT is((SELECT code FROM tap.put(:ns, :ns, name, locator => pg_temp.at(:v, segment, :least + e, 3))), 'MT048',
           format('%s, segment %s, epoch %s', name, segment, e))
  FROM (VALUES ('o', 0, 1), ('new', 0, 1), ('new', 0, 3), ('new', 2, 1), ('o', 3, 0)) AS p(name, segment, e);
SELECT is((SELECT code FROM tap.put(:ns, :ns, name, locator => locator)), 'MT049', locator)
  FROM (VALUES ('new', 'v1:'), ('o', 'v1:1.2/3'), ('new', 'v1:2147483648.0.1/1.1/0+1')) AS p(name, locator);
SELECT results_eq(format($$
    SELECT code FROM mantle.put_object('{5,5,5}', array_fill(%1$s::bigint, '{3}'), array_fill(%1$s::bigint, '{3}'),
        '{m1,m2,m3}', ARRAY[tap.id(), tap.id(), tap.id()], '{7,7,7}', '{8,8,8}', '{420,420,420}', '{1,1,1}', '{e,e,e}',
        '{t,t,t}', array_fill(NULL::jsonb, '{3}'), %2$L, array_fill(NULL::text, '{3}'),
        ARRAY[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()], '{0,0,0}', p_caller => '{0,0,0}') ORDER BY ord
    $$, :ns, ARRAY[pg_temp.at(:v, 0, :least + 2, 4), pg_temp.at(:v, 0, :least, 5), 'objects/00/1']),
    'VALUES (NULL::text), (''MT048''), (NULL)', 'of a batch the others are made');
SELECT take.epoch AS e FROM mantle.take_over_segments(:v, 7, '{0}') AS take \gset
SELECT is((SELECT code FROM tap.put(:ns, :ns, 'new', locator => pg_temp.at(:v, 0, :least + 2, 6))), NULL,
    'a take-over is none before the nodes know it');
SELECT pg_temp.admit(:v, 7, '{0}', ARRAY[:e::bigint]) AS x \gset
SELECT is((SELECT code FROM tap.put(:ns, :ns, 'newer', locator => pg_temp.at(:v, 0, :least + 2, 7))), 'MT048',
    'but then');
SELECT is((SELECT replayed FROM tap.put(:ns, :ns, 'o', locator => pg_temp.at(:v, 0, :least + 2, 1),
    request => '00000000-0000-4000-8000-0000000f3ce0')), true, 'what was acknowledged is answered under any epoch');

-- Parts and manifests.
SELECT tap.id() AS u \gset
SELECT mantle.create_upload_delegated(:u, :ns, 'k', 7, 8, NULL, NULL, NULL, 'FULL_OBJECT') AS x \gset
PREPARE part AS SELECT code FROM mantle.put_part_delegated($1, $2, 1, 'e', 'c', $3, '{0,10}', '{10,10}', $4, NULL);
SELECT results_eq(format('EXECUTE part(%s, %s, %L, false)', :u, :ns,
    ARRAY[pg_temp.at(:v, 0, :e, 8), pg_temp.at(:v, 0, :e - 1, 9)]), 'VALUES (''MT048''::text)', 'a part');
SELECT results_eq(format('EXECUTE part(%s, %s, %L, false)', :u, :ns, ARRAY[pg_temp.at(:v, 0, :e, 8), 'v1:']),
    'VALUES (''MT049''::text)', 'malformed');
SELECT results_eq(format('EXECUTE part(%s, %s, %L, true)', :u, :ns,
    ARRAY[pg_temp.at(:v, 0, :e, 8), pg_temp.at(:v, 0, :e - 1, 9)]), 'VALUES (NULL::text)', 'of bytes that are in use');
PREPARE manifest AS SELECT code FROM mantle.create_manifest_delegated($1, $2, 7, 8, $3, $4, $5, NULL);
SELECT tap.id() AS m \gset
SELECT results_eq(format('EXECUTE manifest(%s, %s, %L, ''{0,0}'', ''{10,10}'')', :m, :ns,
    ARRAY[pg_temp.at(:v, 0, :e, 10), pg_temp.at(:v, 1, :least, 11)]), 'VALUES (''MT048''::text)', 'a manifest');
SELECT results_eq(format('EXECUTE manifest(%s, %s, %L, ''{0}'', ''{10,10}'')', :m, :ns,
    ARRAY[pg_temp.at(:v, 0, :e, 10), pg_temp.at(:v, 0, :e, 11)]), 'VALUES (''MT006''::text)', 'not as many places');
SELECT results_eq(format('EXECUTE manifest(%s, %s, %L, ''{0,0}'', ''{10,10}'')', :u, :ns,
    ARRAY[pg_temp.at(:v, 0, :e, 10), pg_temp.at(:v, 0, :e, 11)]), 'VALUES (''MT006''::text)', 'an upload''s id');
SELECT results_eq(format('EXECUTE manifest(%s, %s, %L, ''{0,3}'', ''{10,4}'')', :m, :ns,
    ARRAY[pg_temp.at(:v, 0, :e, 10), pg_temp.at(:v, 1, :least + 2, 11)]), 'VALUES (NULL::text)', 'in two segments') FROM
    generate_series(1, 2);
SELECT results_eq(format('SELECT locator COLLATE "default", start, length, position FROM mantle.extents_between(%s, 0, 99, 9)', :m),
    format('VALUES (%L::text, 0::bigint, 10::bigint, 0::bigint), (%L, 3, 4, 10)', pg_temp.at(:v, 0, :e, 10),
        pg_temp.at(:v, 1, :least + 2, 11)), 'the bytes of its object');
SELECT is(l, '{}'::text[], 'it stays while its object may still come')
  FROM generate_series(1, 2) AS n CROSS JOIN LATERAL mantle.drop_manifest_delegated(:m, 0 * n) AS l;

-- What rows name in a segment: not in those whose numbers begin alike.
SELECT pg_temp.mount(:w, 1, segments => 12) AS x \gset
SELECT count(*) AS x FROM mantle.lease_segments(:w, 1, 12, true) \gset
SELECT pg_temp.admit(:w, 1, '{1,10,11}', array_fill(:least::bigint, '{3}')) AS x \gset
SELECT count(tap.put(:ns, :ns, 's' || segment || '.' || id, locator => pg_temp.at(:w, segment, :least, id))) AS x
  FROM unnest('{1,10,11}'::int[]) AS segment, generate_series(1, 4) AS id \gset
SELECT tap.id() AS p \gset
SELECT mantle.create_upload_delegated(:p, :ns, 'k', 7, 8, NULL, NULL, NULL, 'FULL_OBJECT') AS x \gset
SELECT count(mantle.put_part_delegated(:p, :ns, 1, 'e', 'c', ARRAY[pg_temp.at(:w, 1, :least, 5)], '{0}', '{10}', false,
    NULL)) AS x \gset
SELECT tap.delete(:ns, :ns, 's1.2') AS x \gset
PREPARE scan AS SELECT locator COLLATE "default", freed FROM mantle.segment_locators($1, 1, $2, $3, $4);
SELECT throws_ok(format('EXECUTE scan(%s, %s, NULL, 9)', :w, :least + 1), 'MT048', NULL, 'an epoch that is not admitted');
SELECT throws_ok(format('EXECUTE scan(%s, %s, NULL, 0)', :w, :least), 'MT006', NULL, 'no rows');
SELECT results_eq(format('EXECUTE scan(%s, %s, NULL, 9)', :w, :least),
    format('SELECT pg_temp.at(%s, 1, %s, id), id = 2 FROM generate_series(1, 5) AS id', :w, :least), 'all');
SELECT results_eq(format('EXECUTE scan(%s, %s, %L, 2)', :w, :least, pg_temp.at(:w, 1, :least, 1)),
    format('SELECT pg_temp.at(%s, 1, %s, id), id = 2 FROM generate_series(2, 3) AS id', :w, :least), 'a page');
SELECT is_empty(format('EXECUTE scan(%s, %s, %L, 2)', :w, :least, pg_temp.at(:w, 1, :least, 5)), 'after the last');

PREPARE named AS SELECT locator COLLATE "default" FROM mantle.named_locators($1, 1, $2, $3);
SELECT results_eq(format('EXECUTE named(%s, '''', 9)', :w),
    format('SELECT pg_temp.at(%s, 1, %s, id) FROM unnest(''{1,3,4,5}''::int[]) AS id', :w, :least),
    'those of objects and parts, and none that is freed');
SELECT results_eq(format('EXECUTE named(%s, %L, 2)', :w, pg_temp.at(:w, 1, :least, 1)),
    format('SELECT pg_temp.at(%s, 1, %s, id) FROM unnest(''{3,4}''::int[]) AS id', :w, :least), 'a page of them');
SELECT is_empty(format('EXECUTE named(%s, %L, 2)', :w, pg_temp.at(:w, 1, :least, 5)), 'after the last of them');
SELECT throws_ok(format('EXECUTE named(%s, '''', 0)', :w), 'MT006', NULL, 'none of them');

-- Another history of the node.
UPDATE mantle.admitted_segments SET lineage = '1/1' WHERE volume = :w;
SELECT is((SELECT code FROM tap.put(:ns, :ns, 'later', locator => pg_temp.at(:w, 1, :least, 6))), 'MT048',
    'admissions end with it');
SELECT throws_ok(format('EXECUTE scan(%s, %s, NULL, 9)', :w, :least), 'MT048', NULL, 'also for who reads');
SELECT throws_ok(format('SELECT pg_temp.admit(%s, 1, ''{1}'', ''{%s}'')', :w, :least), 'MT048', NULL,
    'and are not made again under the same epoch');
SELECT take.epoch AS e FROM mantle.take_over_segments(:w, 1, '{1}') AS take \gset
SELECT lives_ok(format('SELECT pg_temp.admit(%s, 1, ''{1}'', ''{%s}'')', :w, :e), 'but under a new one');
UPDATE mantle.volumes SET lineage = '1/1' WHERE volume IN (:v, :w);
SELECT throws_ok(format('SELECT * FROM mantle.take_over_segments(%s, 7, NULL)', :v), 'MT059', NULL, 'mounts end with it');
SELECT lives_ok(format('SELECT pg_temp.mount(%s, 7, ''b'', 6)', :v), 'and may be recorded again');
SELECT is_empty(format('EXECUTE lease(%s, %s, 7, 1, true)', :least, :v), 'every segment counts as used');
SELECT set_eq(format('EXECUTE lease(%s, %s, 7, 3, false)', :least, :v),
    'VALUES (3, 1::bigint, true), (4, 0, true), (5, 0, true)', 'also those that have no row');
SELECT * FROM finish();
ROLLBACK;
