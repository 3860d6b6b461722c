-- check() finds each kind of damage, and reports nothing else.
\ir setup.psql
BEGIN;
SELECT plan(19);
SELECT tap.namespace('tap-check') AS ns \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SELECT new_id AS b FROM tap.mkdir(:ns, :a, 'b/') \gset
SELECT new_id AS c FROM tap.mkdir(:ns, :b, 'c/') \gset
SELECT new_id AS o FROM tap.put(:ns, :c, 'o', 5) \gset
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'sound');
-- Does some damage, returns what check() finds, and undoes the damage.
CREATE FUNCTION pg_temp.found(damage text, of_ns bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE v_found text[];
BEGIN
    EXECUTE damage;
    v_found := ARRAY(SELECT DISTINCT d.problem FROM tap.damage(of_ns) AS d ORDER BY 1);
    RAISE EXCEPTION 'undo';
EXCEPTION WHEN raise_exception THEN
    RETURN v_found;
END $$;
SELECT is(pg_temp.found(format('DELETE FROM mantle.meta WHERE pid = %s AND name = ''b/''', :a), :ns),
    '{counts,no_parent}', 'counts, no_parent');
SELECT is(pg_temp.found(format('SELECT mantle.write_tombstone(%s, %s)', :ns, :c), :ns), '{counts,removed_parent}',
    'counts, removed_parent');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET id = %s WHERE pid = %s AND name = ''o''', :b, :c), :ns),
    '{id_twice}', 'id_twice');
SELECT is(pg_temp.found(format('SELECT tap.displace(%s, ''b/'', %s)', :a, :c), :ns), '{counts,cycle}', 'counts, cycle');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET entries = entries + 1 WHERE pid = %s AND name = ''/_ATTR''',
    :c), :ns), '{counts}', 'counts');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET bytes = bytes - 1 WHERE pid = %s AND name = ''/_ATTR''', :c),
    :ns), '{counts}', 'counts');
SELECT is(pg_temp.found(format('DELETE FROM mantle.meta WHERE pid = %s AND name = ''o''', :c), :ns), '{counts}',
    'counts');
SELECT is(pg_temp.found(format('SELECT tap.displace(%s, ''o'', %s, ''c'')', :c, :b), :ns),
    '{counts,object_and_directory}', 'counts, object_and_directory');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET name = ''o/'' WHERE pid = %s AND name = ''o''', :c), :ns),
    '{kind_and_name}', 'kind_and_name');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET name = ''..'' WHERE pid = %s AND name = ''o''', :c), :ns),
    '{bad_name}', 'bad_name');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET id = 1::bigint << 60 WHERE pid = %s AND name = ''o''', :c),
    :ns), '{id_unrecorded}', 'id_unrecorded');
SELECT is(pg_temp.found(format('DELETE FROM mantle.namespaces WHERE ns = %s', :ns), :ns), '{root_without_namespace}',
    'root_without_namespace');
SELECT is(pg_temp.found(format('UPDATE mantle.namespaces SET name = ''tap-check-x'' WHERE ns = %s', :ns), :ns),
    '{namespace_without_root}', 'namespace_without_root');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET ns = ns + 1 WHERE pid = %s AND name = ''o''', :c), :ns + 1),
    '{other_namespace}', 'other_namespace');
SELECT is(pg_temp.found(format('SELECT tap.displace(%s, ''b/'', %s)', :a, :c), :ns), '{counts,cycle}',
    'a cycle is found once only');
-- Each damaged entry is reported, by name.
DELETE FROM mantle.meta WHERE id = :c AND explicit;
SELECT results_eq(format('SELECT problem, name, detail FROM mantle.check() WHERE ns = %s ORDER BY 1', :ns),
    format($$ VALUES
    ('counts', '/_ATTR', 'recorded 1 entries, 1 subdirectories, 0 bytes; there are 0, 0, 0'),
        ('no_parent', 'o', 'directory %s has no entry') $$, :c), 'with what is wrong');
-- An analyst with a grant on one namespace sees its damage, and no damage that only the hidden namespaces would
-- explain.
SELECT tap.namespace('tap-check-other') AS other \gset
SELECT mantle.grant_namespace('tap-check-other', 'mantle_analyst') AS x \gset
SET LOCAL ROLE mantle_analyst;
SELECT is_empty('SELECT * FROM mantle.check()', 'not the damage of others');
RESET ROLE;
UPDATE mantle.namespace_grants SET ns = :ns WHERE role = 'mantle_analyst';
SET LOCAL ROLE mantle_analyst;
SELECT set_eq('SELECT problem FROM mantle.check()', '{counts,no_parent}'::text[], 'the damage of his own');
RESET ROLE;
SELECT * FROM finish();
ROLLBACK;
