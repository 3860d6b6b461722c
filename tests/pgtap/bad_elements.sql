-- One bad element of a batch is refused alone (MT006); its neighbours are carried out.
\ir setup.psql
BEGIN;
SELECT plan(19);
SELECT tap.namespace('tap-bad-elements') AS ns \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
CREATE FUNCTION pg_temp.ids(n int) RETURNS bigint[] LANGUAGE sql AS $$ SELECT array_agg(tap.id())
    FROM generate_series(1, n) $$;
CREATE FUNCTION pg_temp.requests(n int) RETURNS uuid[] LANGUAGE sql AS $$ SELECT array_agg(gen_random_uuid())
    FROM generate_series(1, n) $$;
CREATE FUNCTION pg_temp.put(principals int[], ns bigint, pid bigint, names text[], sizes bigint[], locators text[])
RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(coalesce(p.code, 'done'), ' ' ORDER BY p.ord)
      FROM mantle.put_object(principals, array_fill(ns, ARRAY[cardinality(names)]),
          array_fill(pid, ARRAY[cardinality(names)]), names,
               pg_temp.ids(cardinality(names)), array_fill(7, ARRAY[cardinality(names)]),
                   array_fill(8, ARRAY[cardinality(names)]),
               array_fill(420, ARRAY[cardinality(names)]), sizes, array_fill('e'::text, ARRAY[cardinality(names)]),
               array_fill('t'::text, ARRAY[cardinality(names)]), array_fill(NULL::jsonb, ARRAY[cardinality(names)]),
                   locators,
               array_fill(NULL::text, ARRAY[cardinality(names)]), pg_temp.requests(cardinality(names)),
               array_fill(0::bigint, ARRAY[cardinality(names)]),
               p_caller => array_fill('0'::text, ARRAY[cardinality(names)])) AS p
$$;

-- A NULL principal.
SELECT is((SELECT string_agg(coalesce(m.code, 'done'), ' ' ORDER BY m.ord)
             FROM mantle.mkdir('{5,NULL,5}', ARRAY[:ns, :ns, :ns], ARRAY[:a, :a, :a], '{x/,y/,z/}', pg_temp.ids(3),
                 '{7,7,7}', '{8,8,8}',
                      '{493,493,493}', '{true,true,true}', ARRAY[NULL, NULL, NULL]::jsonb[], pg_temp.requests(3),
                          '{0,0,0}', p_caller => '{0,0,0}') AS m),
          'done MT006 done', 'mkdir');
SELECT results_eq(format('SELECT entries, subdirectories FROM mantle.dirstat(%s, ARRAY[%s])', :ns, :a),
    'VALUES (2::bigint, 2::bigint)', 'counts the two');
SELECT is(pg_temp.put('{NULL,5,5}', :ns, :a, '{p,q,r}', '{1,2,3}', '{l1,l2,l3}'), 'MT006 done done', 'put_object');
SELECT is((SELECT string_agg(coalesce(s.code, 'done'), ' ' ORDER BY s.ord)
             FROM mantle.set_attributes('{5,NULL}', ARRAY[:ns, :ns], ARRAY[:a, :a], '{q,r}',
                      ARRAY(SELECT m.id FROM tap.meta() m WHERE m.pid = :a AND m.name IN ('q', 'r') ORDER BY m.name),
                          '{1,1}', '{1,1}',
                      '{256,256}', ARRAY[NULL, NULL]::jsonb[], '{NULL,NULL}', pg_temp.requests(2), '{0,0}',
                          p_caller => '{0,0}') AS s),
          'done MT006', 'set_attributes');
SELECT is((SELECT string_agg(coalesce(d.code, 'done'), ' ' ORDER BY d.ord)
             FROM mantle.delete_object('{NULL,5}', ARRAY[:ns, :ns], ARRAY[:a, :a], '{q,r}', '{NULL,NULL}',
                 '{NULL,NULL}', pg_temp.requests(2), '{0,0}', p_caller => '{0,0}') AS d),
          'MT006 done', 'delete_object');
SELECT is((SELECT string_agg(coalesce(r.code, 'done'), ' ' ORDER BY r.ord)
             FROM mantle.rmdir('{NULL,5}', ARRAY[:ns, :ns], ARRAY[:a, :a], '{x/,z/}',
                      ARRAY(SELECT m.id FROM tap.meta() m WHERE m.pid = :a AND m.name IN ('x/', 'z/') ORDER BY m.name),
                      pg_temp.requests(2), '{0,0}', p_caller => '{0,0}') AS r),
          'MT006 done', 'rmdir');
SELECT is((SELECT code FROM mantle.rename_object(NULL, :ns, :a, 'q', :ns, 'q', false, gen_random_uuid(), 0,
    p_caller => '0')), 'MT006',
    'rename_object');
SELECT is((SELECT code FROM mantle.rename_directory(NULL, :ns, :a, 'x/',
    (SELECT m.id FROM tap.meta() m WHERE m.pid = :a AND m.name = 'x/'), :ns,
               'x/', 0, 1, (SELECT g.epoch FROM mantle.index_groups g WHERE g.index_group = 1), 1, gen_random_uuid(),
                   0)), 'MT006', 'rename_directory');
SELECT is((SELECT code FROM mantle.remove_tree(NULL, :ns, :ns, 'a/', :a, 1, (SELECT g.epoch FROM mantle.index_groups g
    WHERE g.index_group = 1), 1,
               gen_random_uuid(), 0, gen_random_uuid())), 'MT006', 'remove_tree');
SELECT is((SELECT code FROM mantle.create_namespace(NULL, 'tap-nobodys', tap.id(), 7, 8, 493, gen_random_uuid(), 0)),
    'MT006', 'create_namespace');
SELECT is((SELECT code FROM mantle.delete_namespace(NULL, 'tap-bad-elements', gen_random_uuid(), 0)), 'MT006',
    'delete_namespace');
SELECT is_empty(format('SELECT FROM mantle.rename_attempts WHERE ns = %s', :ns), 'none leaves an attempt');

-- Sizes whose sum would exceed a bigint, and locators too long for their PostgreSQL index.
SELECT is(pg_temp.put('{5,5,5}', :ns, :a, '{huge,small,huger}', ARRAY[1::bigint << 62, 1, (1::bigint << 48) + 1],
    '{l4,l5,l6}'),
          'MT006 done MT006', 'sizes');
SELECT is(pg_temp.put('{5,5}', :ns, :a, '{small,huge}', ARRAY[2, 1::bigint << 62], '{l5,l4}'), 'done MT006',
    'also of one that overwrites');
SELECT is(pg_temp.put('{5}', :ns, :a, '{large}', ARRAY[1::bigint << 48], '{l6}'), 'done', 'the largest');
SELECT is(pg_temp.put('{5,5}', :ns, :a, '{far,near}', '{1,1}',
    ARRAY[(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) i), 'l7']),
          'MT006 done', 'locators');
SELECT is(pg_temp.put('{5}', :ns, :a, '{far}', '{1}',
    ARRAY[(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 64) i)]),
          'done', 'the longest');
SELECT results_eq(format('SELECT inserted, refused_ord, refused_code FROM mantle.import_objects(0, %1$s, ARRAY[%2$s,
    %2$s], ''{i1,i2}'',
                              ARRAY[1::bigint << 62, 1], (SELECT first_id FROM mantle.allocate_ids(''pgtap'', 2)),
                                  false, now())', :ns, :a),
                  $$ VALUES (1::bigint, '{1}'::int[], '{MT006}'::text[]) $$, 'an import');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');
SELECT * FROM finish();
ROLLBACK;
