-- Multipart uploads: which parts may come when, and what each end leaves (P53).
\ir setup.psql
BEGIN;
SELECT plan(37);
SELECT tap.namespace('tap-uploads') AS ns \gset
SELECT tap.namespace('tap-uploads-2') AS other \gset
CREATE FUNCTION pg_temp.create(ns bigint, key text, kind text DEFAULT 'COMPOSITE', id bigint DEFAULT tap.id())
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_code text;
BEGIN
    SELECT c INTO v_code FROM mantle.create_upload_delegated(id, ns, key, 7, 8, 'text/plain', NULL, 'crc32', kind) AS c;
    IF v_code IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = v_code; END IF;
    RETURN id;
END $$;
CREATE FUNCTION pg_temp.part(upload bigint, ns bigint, part int, etag text, length bigint, name text, copied boolean
    DEFAULT false, OUT code text, OUT old_locators text[]) LANGUAGE plpgsql AS $$
DECLARE
    v_locator text[] := ARRAY[name];
    v_start bigint[] := '{0}';
    v_length bigint[] := ARRAY[length];
BEGIN
    SELECT p.code, p.old_locators INTO code, old_locators FROM mantle.put_part_delegated(
        upload, ns, part, etag, 'sum', v_locator, v_start, v_length, copied, NULL) AS p;
END $$;
CREATE FUNCTION pg_temp.seal(upload bigint, ns bigint, parts int[], etags text[], size bigint, hash bigint DEFAULT 1,
    goes_to bigint DEFAULT 5, OUT code text, OUT state text, OUT attempt int, OUT destination bigint)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT s.code, s.state, s.attempt, s.destination INTO code, state, attempt, destination
      FROM mantle.seal_upload_delegated(upload, ns, parts, etags, hash, $7, 'whole-2', size, 'sum-2') AS s;
END $$;
SELECT pg_temp.create(:ns, 'a/k') AS u \gset

SELECT throws_ok(format('SELECT pg_temp.create(%s, ''k'')', 999), 'MT011', NULL, 'no namespace');
SELECT throws_ok(format('SELECT pg_temp.create(%s, '''')', :ns), 'MT006', NULL, 'no key');
SELECT throws_ok(format('SELECT pg_temp.create(%s, ''k'', ''SOME'')', :ns), 'MT006', NULL, 'an unknown kind of checksum');
SELECT throws_ok(format('SELECT pg_temp.create(%s, ''k'', ''COMPOSITE'', 5)', :ns), 'MT040', NULL, 'an unrecorded id');
SELECT results_eq(format('SELECT key COLLATE "default", state, principal FROM mantle.upload(%s, %s)', :u, :ns),
    'VALUES (''a/k'', ''open'', 7)', 'an upload');
SELECT is_empty(format('SELECT id FROM mantle.upload(%s, %s)', :u, :other), 'is not in another namespace');

SELECT results_eq(format('SELECT * FROM pg_temp.part(%s, %s, 2, ''two'', 10, ''f2'')', :u, :ns),
    'VALUES (NULL::text, ''{}''::text[])', 'a part');
SELECT results_eq(format('SELECT * FROM pg_temp.part(%s, %s, 2, ''two'', 10, ''f2'')', :u, :ns),
    'VALUES (NULL::text, ''{}''::text[])', 'sent again does not replace itself');
SELECT results_eq(format('SELECT * FROM pg_temp.part(%s, %s, 2, ''two'', 11, ''f3'')', :u, :ns),
    'VALUES (NULL::text, ''{f2}''::text[])', 'another of its number does');
SELECT results_eq(format('SELECT code FROM pg_temp.part(%s, %s, 1, ''one'', 5, ''f1'', true)', :u, :ns),
    'VALUES (NULL::text)', 'a copied part');
SELECT results_eq(format('SELECT * FROM pg_temp.part(%s, %s, 9, ''nine'', 1, ''f9'')', :u, :ns),
    'VALUES (NULL::text, ''{}''::text[])', 'a part that will not be chosen');
SELECT results_eq(format('SELECT code FROM pg_temp.part(%s, %s, 1, ''one'', 5, ''f1'')', :u, :other),
    'VALUES (''MT037''::text)', 'a part in another namespace');
SELECT results_eq(format('SELECT code FROM pg_temp.part(%s, %s, 10001, ''one'', 5, ''f1'')', :u, :ns),
    'VALUES (''MT006''::text)', 'a number that no part has');
SELECT results_eq(format('SELECT part, size, etag FROM mantle.list_parts(%s, 1, 10)', :u),
    'VALUES (2, 11::bigint, ''two''), (9, 1, ''nine'')', 'parts after a number');
SELECT results_eq(format('SELECT * FROM mantle.upload_usage(%s)', :ns), 'VALUES (1::bigint, 17::bigint)', 'their bytes');

SELECT results_eq(format('SELECT code FROM pg_temp.seal(%s, %s, ''{1,2}'', ''{one,other}'', 16)', :u, :ns),
    'VALUES (''MT038''::text)', 'a part with another etag');
SELECT results_eq(format('SELECT code FROM pg_temp.seal(%s, %s, ''{1,3}'', ''{one,three}'', 16)', :u, :ns),
    'VALUES (''MT038''::text)', 'a part that is not there');
SELECT results_eq(format('SELECT code FROM pg_temp.seal(%s, %s, ''{1,2}'', ''{one,two}'', 17)', :u, :ns),
    'VALUES (''MT038''::text)', 'parts of another size');
SELECT results_eq(format('SELECT * FROM pg_temp.seal(%s, %s, ''{1,2}'', ''{one,two}'', 16)', :u, :ns),
    'VALUES (NULL::text, ''sealed'', 0, 5::bigint)', 'a sealed upload');
SELECT results_eq(format('SELECT * FROM pg_temp.seal(%s, %s, ''{1,2}'', ''{one,two}'', 16, 1, 6)', :u, :ns),
    'VALUES (NULL::text, ''sealed'', 0, 5::bigint)', 'sealed again goes where it went first');
SELECT results_eq(format('SELECT code FROM pg_temp.seal(%s, %s, ''{1}'', ''{one}'', 5, 2)', :u, :ns),
    'VALUES (''MT039''::text)', 'and of other parts waits');
SELECT results_eq(format('SELECT code FROM pg_temp.part(%s, %s, 1, ''late'', 5, ''f'')', :u, :ns),
    'VALUES (''MT039''::text)', 'a late part');
SELECT results_eq(format('SELECT code FROM mantle.abort_upload_delegated(%s)', :u), 'VALUES (''MT039''::text)',
    'an abort meanwhile');
SELECT results_eq(format('SELECT locator, start, length, "position" FROM mantle.extents_between(%s, 4, 6, 10)', :u),
    'VALUES (''f1''::text, 0::bigint, 5::bigint, 0::bigint), (''f3'', 0, 11, 5)', 'the bytes of a range');
SELECT results_eq(format('SELECT first_byte, size FROM mantle.part_of_object(%s, 2)', :u),
    'VALUES (5::bigint, 11::bigint)', 'the bytes of a part');
SELECT is_empty(format('SELECT * FROM mantle.part_of_object(%s, 9)', :u), 'of those that were chosen');

\set request '\'' `cat /proc/sys/kernel/random/uuid` '\''
SELECT is((SELECT f FROM mantle.fence_request_delegated(:ns, :ns, 5, :request) AS f), false, 'a request that was not made');
SELECT results_eq(format('SELECT code FROM tap.put(%s, %s, ''k'', request => %L)', :ns, :ns, :request),
    'VALUES (''MT020''::text)', 'cannot be made any more');
SELECT is((SELECT f FROM mantle.fence_request_delegated(:ns, :ns, 5, :request) AS f), false, 'also when it was refused');
SELECT tap.put(:ns, :ns, 'made', request => '00000000-0000-4000-8000-0000000ff1ce') AS x \gset
SELECT is((SELECT f FROM mantle.fence_request_delegated(:ns, :ns, 5, '00000000-0000-4000-8000-0000000ff1ce') AS f), true,
    'one that was made');

SELECT results_eq(format('SELECT * FROM mantle.finish_upload_delegated(%s, 1)', :u), 'VALUES (''{}''::text[])',
    'another attempt finishes nothing');
SELECT results_eq(format('SELECT * FROM mantle.finish_upload_delegated(%s, 0)', :u), 'VALUES (''{f9}''::text[])',
    'the bytes of parts that were not chosen');
SELECT results_eq(format('SELECT code, state FROM pg_temp.seal(%s, %s, ''{1,2}'', ''{one,two}'', 16)', :u, :ns),
    'VALUES (NULL::text, ''done'')', 'a done upload answers the same');
SELECT results_eq('SELECT * FROM mantle.unused_locators(''{f1,f3,f9}'') AS l ORDER BY l', 'VALUES (''f9''::text)',
    'the bytes of its parts are used');
SELECT results_eq(format('SELECT * FROM mantle.drop_manifest_delegated(%s, 0)', :u), 'VALUES (''{}''::text[])',
    'those who read have some time');
SELECT results_eq(format('SELECT * FROM mantle.drop_manifest_delegated(%s, 0)', :u), 'VALUES (''{f1,f3}''::text[])',
    'then its bytes go');
SELECT is(count(*)::int, 1, 'and its answer stays') FROM tap.uploads() AS u WHERE u.id = :u;

SELECT * FROM finish();
ROLLBACK;
