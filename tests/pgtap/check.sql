-- check() finds each kind of damage, and nothing else.
\ir setup.psql
BEGIN;
SELECT plan(14);
SELECT tap.namespace('tap-check') AS ns \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SELECT new_id AS b FROM tap.mkdir(:ns, :a, 'b/') \gset
SELECT new_id AS c FROM tap.mkdir(:ns, :b, 'c/') \gset
SELECT new_id AS o FROM tap.put(:ns, :c, 'o', 5) \gset
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'sound');
-- What check() finds after some damage, which is undone again.
CREATE FUNCTION pg_temp.found(damage text, of_ns bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE v_found text[];
BEGIN
    EXECUTE damage;
    v_found := ARRAY(SELECT DISTINCT d.problem FROM tap.damage(of_ns) AS d ORDER BY 1);
    RAISE EXCEPTION 'undo';
EXCEPTION WHEN raise_exception THEN
    RETURN v_found;
END $$;
SELECT is(pg_temp.found(format('DELETE FROM mantle.meta WHERE pid = %s AND name = ''b/''', :a), :ns), '{counts,no_parent}', 'counts, no_parent');
SELECT is(pg_temp.found(format('SELECT mantle.bury(%s, %s)', :ns, :c), :ns), '{counts,removed_parent}', 'counts, removed_parent');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET id = %s WHERE pid = %s AND name = ''o''', :b, :c), :ns), '{id_twice}', 'id_twice');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET pid = %s WHERE pid = %s AND name = ''b/''', :c, :a), :ns), '{counts,cycle}', 'counts, cycle');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET entries = entries + 1 WHERE pid = %s AND name = ''/_ATTR''', :c), :ns), '{counts}', 'counts');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET bytes = bytes - 1 WHERE pid = %s AND name = ''/_ATTR''', :c), :ns), '{counts}', 'counts');
SELECT is(pg_temp.found(format('DELETE FROM mantle.meta WHERE pid = %s AND name = ''o''', :c), :ns), '{counts}', 'counts');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET name = ''c'', pid = %s WHERE pid = %s AND name = ''o''', :b, :c), :ns), '{counts,object_and_directory}', 'counts, object_and_directory');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET name = ''o/'' WHERE pid = %s AND name = ''o''', :c), :ns), '{kind_and_name}', 'kind_and_name');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET name = ''..'' WHERE pid = %s AND name = ''o''', :c), :ns), '{bad_name}', 'bad_name');
SELECT is(pg_temp.found(format('UPDATE mantle.meta SET id = 1::bigint << 60 WHERE pid = %s AND name = ''o''', :c), :ns), '{id_unrecorded}', 'id_unrecorded');
SELECT is(pg_temp.found(format('DELETE FROM mantle.namespaces WHERE ns = %s', :ns), :ns), '{root_without_namespace}', 'root_without_namespace');
SELECT is(pg_temp.found(format('UPDATE mantle.namespaces SET name = ''tap-check-x'' WHERE ns = %s', :ns), :ns), '{namespace_without_root}', 'namespace_without_root');
SELECT * FROM finish();
ROLLBACK;
