-- A directory is modified when one of its entries is made, removed, replaced or renamed, and at no other time.
\ir setup.psql
BEGIN;
SELECT plan(21);
SELECT tap.namespace('tap-modified') AS ns \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SELECT new_id AS b FROM tap.mkdir(:ns, :ns, 'b/') \gset
SELECT new_id AS s FROM tap.mkdir(:ns, :a, 's/') \gset
SELECT new_id AS v FROM tap.mkdir(:ns, :b, 'v/') \gset
SELECT new_id AS o FROM tap.put(:ns, :a, 'o', 5) \gset
SELECT tap.put(:ns, :b, 'p', 5) AS x \gset
SELECT tap.put(:ns, :b, 'q', 5) AS x \gset
-- Moves all modification times into the past, because now() stands still within a transaction.
CREATE FUNCTION pg_temp.age() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE mantle.meta SET modified = '2000-01-01' WHERE name = '/_ATTR';
END $$;
-- Returns which of the two directories were modified since.
CREATE FUNCTION pg_temp.modified(ns bigint, a bigint, b bigint) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(string_agg(CASE d.ord WHEN 1 THEN 'a' ELSE 'b' END || CASE WHEN d.modified = now() THEN '' ELSE '?'
        END, ' ' ORDER BY d.ord)
                        FILTER (WHERE d.modified IS DISTINCT FROM '2000-01-01'), 'none')
      FROM mantle.dirstat(ns, ARRAY[a, b]) AS d
$$;

SELECT pg_temp.age() AS x \gset
SELECT tap.put(:ns, :a, 'new', 1) AS x \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'a', 'an object is made');
SELECT pg_temp.age() AS x \gset
SELECT tap.mkdir(:ns, :a, 'newer/') AS x \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'a', 'a directory is made');
SELECT pg_temp.age() AS x \gset
SELECT tap.put(:ns, :a, 'o', 6, id => :o) AS x \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'a', 'an object is overwritten');
SELECT pg_temp.age() AS x \gset
SELECT tap.put(:ns, :a, 'o', 6, id => :o) AS x \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'a', 'by one of its size');
SELECT pg_temp.age() AS x \gset
SELECT tap.delete(:ns, :a, 'new') AS x \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'a', 'an object is deleted');
SELECT pg_temp.age() AS x \gset
SELECT tap.put(:ns, :a, 'nothing', 0) AS x \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'a', 'one without bytes is made');
SELECT pg_temp.age() AS x \gset
SELECT tap.delete(:ns, :a, 'nothing') AS x \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'a', 'and deleted');
SELECT pg_temp.age() AS x \gset
SELECT tap.rmdir(:ns, :a, 'newer/', (SELECT m.id FROM tap.meta() m WHERE m.pid = :a AND m.name = 'newer/')) AS x \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'a', 'a directory is removed');

-- Attributes belong to the entry, so changing them does not modify the directory.
SELECT pg_temp.age() AS x \gset
SELECT code AS x FROM mantle.set_attributes('{5}', ARRAY[:ns], ARRAY[:a], '{o}', ARRAY[:o], '{1}', '{1}', '{256}',
    ARRAY['{"k": 1}']::jsonb[],
    '{NULL}', ARRAY[gen_random_uuid()], '{0}', p_caller => '{0}') \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'none', 'attributes of an entry');
SELECT tap.mkdir(:ns, :a, 'i/', false) AS x \gset
SELECT pg_temp.age() AS x \gset
SELECT tap.mkdir(:ns, :a, 'i/') AS x \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'none', 'an implicit directory becomes explicit: nothing is made');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'o', condition => '*absent')), 'MT019', 'a refused change');
SELECT is(pg_temp.modified(:ns, :a, :b), 'none', 'modifies nothing');

-- Renames.
SELECT is((SELECT code FROM mantle.rename_object(5, :ns, :a, 'o', :a, 'o2', false, gen_random_uuid(), 0,
    p_caller => '0')), NULL,
    'within a directory');
SELECT is(pg_temp.modified(:ns, :a, :b), 'a', 'modifies it');
SELECT pg_temp.age() AS x \gset
SELECT code AS x FROM mantle.rename_object(5, :ns, :a, 'o2', :a, 'o2', true, gen_random_uuid(), 0,
    p_caller => '0') \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'none', 'onto itself does not');
SELECT code AS x FROM mantle.rename_object(5, :ns, :b, 'q', :b, 'p', true, gen_random_uuid(), 0, p_caller => '0') \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'b', 'over one of its size, within a directory');
SELECT code AS x FROM tap.put(:ns, :b, 'p', 6) \gset
SELECT pg_temp.age() AS x \gset
SELECT code AS x FROM mantle.rename_object(5, :ns, :a, 'o2', :b, 'p', true, gen_random_uuid(), 0, p_caller => '0') \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'a b', 'over one of its size, elsewhere');
SELECT pg_temp.age() AS x \gset
SELECT code AS x FROM tap.rename(:ns, :a, 's/', :s, :b, 'v/', victim => :v) \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'a b', 'a directory over an empty one');
SELECT pg_temp.age() AS x \gset
SELECT code AS x FROM tap.rename(:ns, :b, 'v/', :s, :a, 's/') \gset
SELECT is(pg_temp.modified(:ns, :a, :b), 'a b', 'and back');
SELECT results_eq(format('SELECT entries, subdirectories, bytes FROM mantle.dirstat(%s, ARRAY[%s, %s])', :ns, :a, :b),
                  'VALUES (2::bigint, 2::bigint, 0::bigint), (1, 0, 6)', 'all is counted');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');
SELECT * FROM finish();
ROLLBACK;
