-- Bytes inside PostgreSQL: each change of an object's row carries them along or removes them (P62).
\ir setup.psql
BEGIN;
SELECT plan(54);
SELECT tap.namespace('tap-inline') AS ns \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SELECT new_id AS b FROM tap.mkdir(:ns, :ns, 'b/') \gset
CREATE FUNCTION pg_temp.put(ns bigint, pid bigint, name text, bytes bytea, size bigint DEFAULT NULL, locator text DEFAULT NULL,
    id bigint DEFAULT tap.id(), OUT code text, OUT new_id bigint, OUT version bigint, OUT old_locator text)
LANGUAGE sql AS $$
    SELECT p.code, p.id, p.version, p.old_locator
      FROM mantle.put_object('{5}', ARRAY[ns], ARRAY[pid], ARRAY[name], ARRAY[id], '{7}', '{8}', '{420}',
               ARRAY[coalesce(size, octet_length(bytes))], '{e}', '{text/plain}', ARRAY[NULL]::jsonb[], ARRAY[locator],
               '{NULL}', ARRAY[gen_random_uuid()], '{0}', p_caller => '{0}', p_inline => ARRAY[bytes]) AS p
$$;
CREATE FUNCTION pg_temp.locator(of_pid bigint, of_name text) RETURNS text LANGUAGE sql AS $$
    SELECT m.locator FROM tap.meta() AS m WHERE m.pid = of_pid AND m.name = of_name COLLATE "C" AND m.ts = 0 $$;
-- What an object's row leads to.
CREATE FUNCTION pg_temp.bytes(of_pid bigint, of_name text) RETURNS bytea LANGUAGE sql AS $$
    SELECT b FROM mantle.inline_bytes(of_pid, pg_temp.locator(of_pid, of_name)) AS b $$;
-- All bytes that are kept in these directories.
CREATE FUNCTION pg_temp.kept(VARIADIC pids bigint[]) RETURNS text[] LANGUAGE sql AS $$
    SELECT ARRAY(SELECT encode(i.bytes, 'escape') FROM tap.inline() AS i WHERE i.pid = ANY (pids) ORDER BY 1) $$;
CREATE FUNCTION pg_temp.rename(ns bigint, src bigint, name text, dst bigint, new text) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(r.code, r.old_locator) FROM mantle.rename_object(5, ns, src, name, dst, new, true, gen_random_uuid(), 0,
        p_caller => '0') AS r $$;
CREATE FUNCTION pg_temp.copy(ns bigint, src bigint, source text, dst bigint, copy text) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(c.code, c.old_locator)
      FROM (SELECT m.id, m.version FROM tap.meta() AS m WHERE m.pid = $2 AND m.name = $3 COLLATE "C" AND m.ts = 0) AS s
      CROSS JOIN LATERAL mantle.copy_object(5, $1, $2, $3, s.id, s.version, $1, $4, $5, tap.id(), 7, 8, 420, NULL, NULL,
          NULL, gen_random_uuid(), 1, p_caller => '0') AS c $$;

-- Put and overwrite.
SELECT tap.id() AS id \gset
SELECT results_eq(format('SELECT code, new_id FROM pg_temp.put(%s, %s, ''o'', ''one'', id => %s)', :ns, :a, :id),
    format('VALUES (NULL::text, %s::bigint)', :id), 'an object with its bytes');
SELECT is(pg_temp.locator(:a, 'o'), 'inline:' || :id, 'its locator names the id of the write');
SELECT is(pg_temp.bytes(:a, 'o'), 'one'::bytea, 'its bytes are there');
SELECT results_eq(format('SELECT code, version, old_locator FROM pg_temp.put(%s, %s, ''o'', ''two'')', :ns, :a),
    'VALUES (NULL::text, 2::bigint, NULL::text)', 'overwritten, it leaves nothing for the caller to remove');
SELECT is(pg_temp.bytes(:a, 'o'), 'two'::bytea, 'it has the new bytes');
SELECT isnt(pg_temp.locator(:a, 'o'), 'inline:' || :id, 'under another locator');
SELECT is(pg_temp.kept(:a), '{two}', 'the old ones are gone');
SELECT is((SELECT count(*) FROM mantle.inline_bytes(:a, 'inline:' || :id)), 0::bigint, 'who asks for them gets none');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'o', locator => 'objects/00/o')), NULL, 'overwritten by bytes elsewhere');
SELECT is(pg_temp.kept(:a), '{}', 'its bytes go');
SELECT is((SELECT old_locator FROM pg_temp.put(:ns, :a, 'o', 'three')), 'objects/00/o', 'and the other way round');
SELECT is((SELECT code FROM pg_temp.put(:ns, :a, 'large', decode(repeat('00', 16384), 'hex'))), NULL, 'up to 16 KiB');
SELECT is(octet_length(pg_temp.bytes(:a, 'large')), 16384, 'which are there, too');
SELECT is((SELECT code FROM tap.delete(:ns, :a, 'large')), NULL, 'deleted');

-- What is refused.
SELECT is((SELECT code FROM pg_temp.put(:ns, :a, 'p', decode(repeat('00', 16385), 'hex'))), 'MT006', 'more bytes');
SELECT is((SELECT code FROM pg_temp.put(:ns, :a, 'p', '')), 'MT006', 'none');
SELECT is((SELECT code FROM pg_temp.put(:ns, :a, 'p', 'x', size => 2)), 'MT006', 'another size');
SELECT is((SELECT code FROM pg_temp.put(:ns, :a, 'p', 'x', locator => 'objects/00/p')), 'MT006', 'a locator as well');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'p', locator => 'inline:' || :id)), 'MT049', 'such a locator without bytes');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'o', locator => pg_temp.locator(:a, 'o'))), 'MT049', 'also an existing one');
SELECT is(pg_temp.kept(:a), '{three}', 'nothing was written');

-- Renames.
SELECT pg_temp.locator(:a, 'o') AS at \gset
SELECT is(pg_temp.rename(:ns, :a, 'o', :a, 'q'), NULL, 'renamed in its directory');
SELECT is(pg_temp.bytes(:a, 'q'), 'three'::bytea, 'it keeps its bytes');
SELECT code AS x FROM pg_temp.put(:ns, :b, 'r', 'replaced') \gset
SELECT is(pg_temp.rename(:ns, :a, 'q', :b, 'r'), NULL, 'renamed to another directory, over another object');
SELECT is(pg_temp.locator(:b, 'r'), :'at', 'its locator stays');
SELECT is(pg_temp.bytes(:b, 'r'), 'three'::bytea, 'it takes its bytes along');
SELECT is(pg_temp.kept(:a, :b), '{three}', 'and those of the other are gone');
SELECT is(pg_temp.rename(:ns, :b, 'r', :a, 'o'), NULL, 'back, to the directory with the smaller id');
SELECT is(pg_temp.kept(:a), '{three}', 'they are there');

-- Copies have bytes of their own.
SELECT is(pg_temp.copy(:ns, :a, 'o', :b, 'c'), NULL, 'copied to another directory');
SELECT isnt(pg_temp.locator(:b, 'c'), :'at', 'under its own locator');
SELECT is((SELECT count(*) FROM tap.meta() AS m WHERE m.pid IN (:a, :b) AND m.shared), 0::bigint, 'nothing is shared');
SELECT is(pg_temp.copy(:ns, :a, 'o', :a, 'o'), NULL, 'copied onto itself');
SELECT is(pg_temp.bytes(:a, 'o'), 'three'::bytea, 'it keeps its bytes');
SELECT code AS x FROM tap.delete(:ns, :a, 'o') \gset
SELECT is(pg_temp.bytes(:b, 'c'), 'three'::bytea, 'the copy outlives its source');
SELECT is(pg_temp.copy(:ns, :b, 'c', :b, 'd'), NULL, 'copied within a directory');
SELECT is(pg_temp.copy(:ns, :b, 'd', :b, 'c'), NULL, 'and over its source');
SELECT is(pg_temp.kept(:a, :b), '{three,three}', 'each has its own');

-- Moves between stores.
CREATE FUNCTION pg_temp.replace(of_pid bigint, of_name text, new text, bytes bytea) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(r.code, r.old_locator)
      FROM (SELECT m.id, m.locator FROM tap.meta() AS m
             WHERE m.pid = of_pid AND m.name = of_name COLLATE "C" AND m.ts = 0) AS s
      CROSS JOIN LATERAL mantle.replace_locators_delegated(of_pid, ARRAY[of_name], ARRAY[s.id], ARRAY[s.locator], ARRAY[new],
          ARRAY[bytes]) AS r $$;
SELECT is(pg_temp.replace(:b, 'c', 'objects/00/c', NULL), NULL, 'its bytes move elsewhere');
SELECT is(pg_temp.kept(:b), '{three}', 'here they are gone');
SELECT is(pg_temp.replace(:b, 'c', 'inline:' || tap.id(), 'other'), 'objects/00/c',
    'other bytes of the same size');
SELECT is(pg_temp.bytes(:b, 'c'), 'other'::bytea, 'move here');
SELECT is(pg_temp.replace(:b, 'c', 'inline:' || tap.id(), 'othe'), 'MT026', 'bytes of another size do not');
SELECT is(pg_temp.replace(:b, 'c', 'inline:' || (1::bigint << 60), 'third'), 'MT040', 'nor under a number that is no id');
SELECT is(pg_temp.replace(:b, 'c', 'objects/00/c', 'third'), 'MT006', 'nor under another locator');

-- What is damaged is found.
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'sound');
CREATE FUNCTION pg_temp.found(damage text) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE v_found text[];
BEGIN
    EXECUTE damage;
    v_found := ARRAY(SELECT c.problem FROM mantle.check_inline() AS c ORDER BY 1);
    RAISE EXCEPTION 'undo';
EXCEPTION WHEN raise_exception THEN
    RETURN v_found;
END $$;
SELECT is(pg_temp.found(format('DELETE FROM mantle.inline WHERE pid = %s', :b)), '{inline_bytes,inline_bytes}',
    'no bytes');
SELECT is(pg_temp.found(format('UPDATE mantle.inline SET bytes = ''x'' WHERE pid = %s', :b)),
    '{inline_bytes,inline_bytes}', 'of another size');
SELECT is(pg_temp.found(format('INSERT INTO mantle.inline VALUES (%s, 1, ''x'')', :b)), '{inline_unused}',
    'of no object');
SELECT is(pg_temp.found('SELECT 1'), '{}', 'otherwise nothing');
SET LOCAL ROLE mantle_analyst;
SELECT is_empty('SELECT * FROM mantle.check()', 'an analyst checks the rest');
RESET ROLE;

-- Recursive removal.
SELECT code AS x FROM tap.remove_tree(:ns, :ns, 'b/', :b) \gset
SELECT is(cardinality(pg_temp.kept(:b)), 2, 'what is in the trash keeps its bytes');
SELECT ok(tap.wait_for('SELECT mantle.run_maintenance(''empty_trash'') = 0'), 'it is emptied');
SELECT is(pg_temp.kept(:a, :b), '{}', 'then they are gone');
SELECT * FROM finish();
ROLLBACK;
