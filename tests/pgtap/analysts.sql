-- The analysts' functions and views, called as an analyst. A small tree has known answers. A tree large enough for
-- the plan of many directories (mantle.are_many) is compared between functions.
\ir setup.psql
BEGIN;
SELECT plan(39);
SELECT tap.namespace('tap-analysts') AS ns \gset
SELECT tap.namespace('tap-analysts-hidden') AS hidden \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SELECT new_id AS b FROM tap.mkdir(:ns, :a, 'b.d/') \gset
SELECT new_id AS i FROM tap.mkdir(:ns, :a, 'implied/', false) \gset
SELECT new_id AS o FROM tap.put(:ns, :ns, 'o.deb', 5, etag => 'e1') \gset
SELECT tap.put(:ns, :a, 'x.deb', 1000000, etag => 'e2') AS x \gset
SELECT tap.put(:ns, :a, 'x_deb', 524288, etag => 'e1') AS x \gset
SELECT tap.put(:ns, :b, 'p%', 0, etag => 'e3') AS x \gset
SELECT tap.put(:ns, :i, 'y', 1000000, etag => 'e2') AS x \gset
SELECT tap.put(:hidden, :hidden, 'x.deb', 7, etag => 'e2') AS x \gset
UPDATE mantle.meta SET created = '2026-01-02 23:59:59+00', modified = '2026-03-01 00:00:00+00' WHERE ns = :ns
    AND name = 'o.deb';
UPDATE mantle.meta SET modified = now() - interval '89 days' WHERE ns = :ns AND name = 'x.deb';
UPDATE mantle.meta SET modified = now() - interval '91 days' WHERE ns = :ns AND name = 'x_deb';
SELECT mantle.grant_namespace('tap-analysts', 'mantle_analyst') AS x \gset
SET LOCAL ROLE mantle_analyst;

SELECT results_eq($$ SELECT kind, name, id FROM mantle.resolve('tap-analysts', 'o.deb') $$,
    format($$ VALUES ('object', 'o.deb', %s::bigint) $$, :o), 'resolve: an object');
SELECT is_empty($$ SELECT * FROM mantle.resolve('tap-analysts', 'o.deb/') $$, 'a slash means a directory');
SELECT results_eq($$ SELECT kind, pid, name, id FROM mantle.resolve('tap-analysts', 'a/b.d') $$,
    format($$ VALUES ('directory', %s::bigint, 'b.d/', %s::bigint) $$, :a, :b), 'a directory');
SELECT results_eq($$ SELECT kind, pid, id FROM mantle.resolve('tap-analysts', '/') $$,
    format('VALUES (''directory'', 0::bigint, %s::bigint)', :ns), 'the root');
SELECT is_empty(format('SELECT * FROM mantle.resolve(''tap-analysts'', %L)', p), format('nothing at %s', p))
    FROM unnest(ARRAY['a/none', 'none/x', 'o.deb/x']) p;
SELECT is_empty($$ SELECT * FROM mantle.resolve('tap-none', '') $$, 'no such namespace');
SELECT is(mantle.path_of('tap-analysts', :b), 'a/b.d/', 'path_of: a directory');
SELECT is(mantle.path_of('tap-analysts', :o), 'o.deb', 'an object');
SELECT is(mantle.path_of('tap-analysts', :ns), '', 'the root');
SELECT results_eq($$ SELECT name, mode, size FROM mantle.ls('tap-analysts', 'a') $$,
    $$ VALUES ('b.d/', '755', NULL::bigint), ('implied/', '755', NULL), ('x.deb', '644', 1000000),
    ('x_deb', '644', 524288) $$, 'ls');
SELECT is_empty($$ SELECT * FROM mantle.ls('tap-analysts', 'none') $$, 'ls of nothing');

PREPARE found AS SELECT key FROM mantle.find('tap-analysts', $1, $2, $3, $4) ORDER BY key COLLATE "C";
SELECT results_eq('EXECUTE found('''', NULL, NULL, NULL)', ARRAY['a/', 'a/b.d/', 'a/b.d/p%', 'a/implied/',
    'a/implied/y', 'a/x.deb', 'a/x_deb', 'o.deb'], 'find: everything');
SELECT results_eq('EXECUTE found('''', ''*.deb'', NULL, NULL)', ARRAY['a/x.deb', 'o.deb'], 'by name; a dot is a dot');
SELECT results_eq('EXECUTE found('''', ''x_*'', NULL, NULL)', ARRAY['a/x_deb'], 'an underscore is one');
SELECT results_eq('EXECUTE found('''', ''?%'', NULL, NULL)', ARRAY['a/b.d/p%'],
    'a percent sign too; ? is one character');
SELECT results_eq('EXECUTE found(''a'', ''*.d'', NULL, NULL)', ARRAY['a/b.d/'], 'directories without their slash');
SELECT results_eq('EXECUTE found('''', NULL, 524288, NULL)', ARRAY['a/implied/y', 'a/x.deb', 'a/x_deb'],
    'at least so large');
SELECT results_eq('EXECUTE found(''/a/'', ''x*'', NULL, now() - interval ''90 days'')', ARRAY['a/x.deb'],
    'changed since');
SELECT is_empty('EXECUTE found(''none'', NULL, NULL, NULL)', 'nowhere');

SELECT results_eq($$ SELECT directory, id, entries, objects, bytes FROM mantle.top_dirs('tap-analysts', '', 2) $$,
    format($$ VALUES ('a/', %s::bigint, 4::bigint, 2::bigint, 1524288::bigint), ('a/implied/', %s, 1, 1, 1000000) $$,
    :a, :i), 'top_dirs by bytes');
SELECT results_eq($$ SELECT directory FROM mantle.top_dirs('tap-analysts', 'a', 10, 'entries') $$,
    ARRAY['a/', 'a/b.d/', 'a/implied/'], 'by entries, below a directory');
SELECT throws_ok($$ SELECT * FROM mantle.top_dirs('tap-analysts', '', 1, 'name') $$, '22023', NULL, 'by nothing else');
SELECT results_eq($$ SELECT bucket, key, size, etag, content_type FROM mantle.export_inventory('tap-analysts', '') $$,
    $$ VALUES
    ('tap-analysts', 'a/', 0::bigint, NULL, NULL), ('tap-analysts', 'a/b.d/', 0, NULL, NULL),
        ('tap-analysts', 'a/b.d/p%', 0, 'e3', 'text/plain'),
    ('tap-analysts', 'a/implied/y', 1000000, 'e2', 'text/plain'), ('tap-analysts', 'a/x.deb', 1000000, 'e2',
        'text/plain'),
    ('tap-analysts', 'a/x_deb', 524288, 'e1', 'text/plain'), ('tap-analysts', 'o.deb', 5, 'e1', 'text/plain') $$,
        'export_inventory: in key order, without implied directories');
RESET ROLE;
SELECT results_eq($$ SELECT key COLLATE "C" FROM mantle.export_inventory('tap-analysts', '') $$,
    format($$ SELECT key COLLATE "C" FROM mantle.list_tree(%1$s, %1$s, '', NULL, 1000, '0') $$, :ns), 'as S3 lists it');
SET LOCAL ROLE mantle_analyst;

SELECT results_eq('SELECT * FROM mantle.size_histogram',
    $$ VALUES ('tap-analysts'::text COLLATE "C", 0::bigint, 1::bigint, 1::bigint, 0::bigint),
    ('tap-analysts', 4, 8, 1, 5), ('tap-analysts', 524288, 1048576, 3, 2524288) $$, 'size_histogram');
SELECT results_eq('SELECT * FROM mantle.small_objects',
    $$ VALUES ('tap-analysts'::text COLLATE "C", 5::bigint, 3::bigint, 0.6000, 2524293::bigint, 524293::bigint) $$,
    'small_objects: 512 KB is small');
SELECT results_eq('SELECT * FROM mantle.depth_distribution',
    $$ VALUES ('tap-analysts', 1, 1::bigint, 1::bigint, 5::bigint), ('tap-analysts', 2, 2, 2, 1524288),
    ('tap-analysts', 3, 0, 2, 1000000) $$, 'depth_distribution');
SELECT results_eq('SELECT * FROM mantle.growth_by_day',
    $$ VALUES ('tap-analysts'::text COLLATE "C", '2026-01-02'::date, 1::bigint, 5::bigint),
    ('tap-analysts', (now() AT TIME ZONE 'UTC')::date, 4, 2524288) $$, 'growth_by_day');
SELECT is((SELECT sum(objects) FROM mantle.stale_data WHERE stale), (SELECT count(*)::numeric FROM mantle.meta
    WHERE id IS NOT NULL AND explicit IS NULL AND modified <= now() - interval '90 days'), 'stale_data: 90 days');
SELECT set_eq('SELECT not_modified_for_days, objects FROM mantle.stale_data WHERE not_modified_for_days < 90',
    'VALUES (0, 2::bigint), (30, 1)', 'and the classes');
SELECT results_eq('SELECT * FROM mantle.duplicates',
    $$ VALUES ('tap-analysts'::text COLLATE "C", 'e2', 1000000::bigint, 2::bigint, 1000000::bigint) $$,
    'duplicates: of one size and namespace');

-- The directories that change most.
RESET ROLE;
UPDATE mantle.meta SET modified = now() + interval '1 day' WHERE pid = :i AND name = '/_ATTR';
SET LOCAL mantle.delta_records = 'always';
SELECT count(tap.put(:ns, :b, 'hot' || g)) AS x FROM generate_series(1, 10) g \gset
SET LOCAL ROLE mantle_analyst;
SELECT results_eq('SELECT namespace, directory, id, deltas >= 10 FROM mantle.hot_dirs(1)',
    format($$ VALUES ('tap-analysts', 'a/b.d/', %s::bigint, true) $$, :b), 'hot_dirs');
SELECT set_eq('SELECT directory FROM mantle.hot_dirs()', ARRAY['', 'a/', 'a/b.d/', 'a/implied/'],
    'and no others than are granted');
RESET ROLE;

-- Many directories: 6,000 with an object each, six levels deep, and a removed tree that no function may show.
SELECT new_id AS many FROM tap.mkdir(:hidden, :hidden, 'many/') \gset
SELECT first_id AS f FROM mantle.allocate_ids('analysts', 20000) \gset
INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, explicit, created)
SELECT CASE WHEN g < 4 THEN :many ELSE :f + g / 4 END, 'd' || g || '/', :hidden, :f + g, 7, 8, 493, 1, true, now()
    FROM generate_series(1, 6000) g;
INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, size, created, modified)
SELECT :f + g, 'o' || g, :hidden, :f + 10000 + g, 7, 8, 420, 1, g, now(), now() FROM generate_series(1, 6000) g;
INSERT INTO mantle.meta (pid, name, ts, ns, entries, subdirectories, bytes, modified)
SELECT pid, '/_ATTR', nextval('mantle.delta_ts'), :hidden, count(*), count(explicit), coalesce(sum(size), 0), now()
  FROM mantle.meta WHERE ns = :hidden AND id IS NOT NULL AND (pid >= :f OR pid = :many) GROUP BY pid;
SELECT tap.displace(:f + 1, 'd5/', 1) AS x \gset
SELECT is((SELECT d FROM mantle.du('tap-analysts-hidden', 'many') AS d), (
    WITH RECURSIVE t AS (SELECT :many::bigint AS id UNION ALL SELECT m.id FROM t JOIN tap.meta() m ON m.pid = t.id
        AND m.explicit)
    SELECT ROW(count(*) FILTER (WHERE m.explicit IS NULL), count(m.explicit) + 1, coalesce(sum(m.size), 0)::bigint)
      FROM t JOIN tap.meta() m ON m.pid = t.id AND m.id IS NOT NULL),
          'du of many (the parent still counts the one moved away)');
SELECT set_eq($$ SELECT key FROM mantle.find('tap-analysts-hidden', 'many') $$, format($$
    WITH RECURSIVE t AS (SELECT %s::bigint AS id, 'many/' COLLATE "C" AS key, true AS explicit UNION ALL
        SELECT m.id, t.key || m.name, m.explicit FROM t JOIN tap.meta() m ON m.pid = t.id AND t.explicit
            AND m.id IS NOT NULL)
    SELECT key COLLATE "default" FROM t WHERE key <> 'many/' $$, :many), 'find of many');
SELECT is((SELECT count(*) FROM mantle.export_inventory('tap-analysts-hidden', 'many')),
    (SELECT count(*) FROM mantle.find('tap-analysts-hidden', 'many')), 'export_inventory of many');
SELECT is((SELECT sum(objects) FROM mantle.depth_distribution WHERE namespace = 'tap-analysts-hidden'),
    (SELECT objects::numeric FROM mantle.du('tap-analysts-hidden', '')), 'depth_distribution of many');
SELECT * FROM finish();
ROLLBACK;
