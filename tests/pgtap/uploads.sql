-- Multipart uploads: which parts may come when, and what each end leaves (P53).
\ir setup.psql
BEGIN;
SELECT plan(50);
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
-- The bytes move elsewhere.
PREPARE replace AS SELECT * FROM mantle.replace_extents_delegated($1, $2, $3, $4, $5, $6);
PREPARE extents AS SELECT part, extent, locator COLLATE "default", start, length, etag
    FROM mantle.upload_extents($1, 0, 0, 10);
SELECT results_eq(format('EXECUTE replace(%s, 2, ''{f2}'', ''{g}'', ''{0}'', ''{11}'')', :u),
    'VALUES (''MT026''::text, NULL::text[])', 'other bytes are there');
SELECT results_eq(format('EXECUTE replace(%s, 7, ''{f2}'', ''{g}'', ''{0}'', ''{11}'')', :u),
    'VALUES (''MT026''::text, NULL::text[])', 'no such part');
SELECT results_eq(format('EXECUTE replace(%s, 2, ''{f3}'', ''{g}'', ''{0}'', ''{10}'')', :u),
    'VALUES (''MT006''::text, NULL::text[])', 'of another length');
SELECT results_eq(format('EXECUTE replace(%s, 2, ''{f3}'', ''{}'', ''{}'', ''{}'')', :u),
    'VALUES (''MT006''::text, NULL::text[])', 'to nowhere');
SELECT results_eq(format('EXECUTE replace(%s, 2, ''{f3}'', ''{v1:1.1.1/1.1/0+11}'', ''{0}'', ''{11}'')', :u),
    'VALUES (''MT048''::text, NULL::text[])', 'a segment that nobody has');
SELECT results_eq(format('EXECUTE replace(%s, 2, ''{f3}'', ''{g1,g2}'', ''{0,0}'', ''{4,7}'')', :u),
    'VALUES (NULL::text, ''{f3}''::text[])', 'in two pieces');
SELECT results_eq(format('EXECUTE extents(%s)', :u),
    'VALUES (1, 0, ''f1'', 0::bigint, 5::bigint, ''one''), (2, 0, ''g1'', 0, 4, ''two''), (2, 1, ''g2'', 0, 7, NULL)',
    'the part is what it was');
SELECT results_eq(format('SELECT locator, start, length, "position" FROM mantle.extents_between(%s, 4, 10, 10)', :u),
    'VALUES (''f1''::text, 0::bigint, 5::bigint, 0::bigint), (''g1'', 0, 4, 5), (''g2'', 0, 7, 9)', 'and where it was');
SELECT tap.put(:ns, :ns, 'whole', locator => 'manifest:' || :u) AS x \gset
SELECT tap.put(:ns, :ns, 'single', locator => 'f4') AS x \gset
SELECT pg_temp.create(:ns, 'copy') AS w \gset
PREPARE copy_part AS SELECT c.code FROM tap.meta() AS m CROSS JOIN LATERAL mantle.copy_part(m.pid, m.name, m.id, m.version,
    $1, m.ns, 1, 'e', 's', $3, '{0,0}', '{4,7}', NULL) AS c WHERE m.ns = $4 AND m.name = $2 COLLATE "C";
SELECT results_eq(format('EXECUTE copy_part(%s, ''whole'', ''{g1,f3}'', %s)', :w, :ns), 'VALUES (''MT026''::text)',
    'a copied part does not name bytes that have moved');
SELECT results_eq(format('EXECUTE copy_part(%s, ''whole'', ''{g1,g2}'', %s)', :w, :ns), 'VALUES (NULL::text)',
    'but those that are there');
SELECT results_eq(format('EXECUTE copy_part(%s, ''single'', ''{f4,f5}'', %s)', :w, :ns), 'VALUES (''MT026''::text)',
    'nor does one of an object with one locator');
SELECT results_eq(format('EXECUTE copy_part(%s, ''single'', ''{f4,f4}'', %s)', :w, :ns), 'VALUES (NULL::text)',
    'but that which it has');
SELECT results_eq(format('EXECUTE replace(%s, 2, ''{g1,g2}'', ''{f3}'', ''{0}'', ''{11}'')', :u),
    'VALUES (NULL::text, ''{g1,g2}''::text[])', 'back');

SELECT results_eq(format('SELECT * FROM mantle.drop_manifest_delegated(%s, 0)', :u), 'VALUES (''{}''::text[])',
    'those who read have some time');
SELECT results_eq(format('SELECT * FROM mantle.drop_manifest_delegated(%s, 0)', :u), 'VALUES (''{f1,f3}''::text[])',
    'then its bytes go');
SELECT is(count(*)::int, 1, 'and its answer stays') FROM tap.uploads() AS u WHERE u.id = :u;

SELECT * FROM finish();
ROLLBACK;
