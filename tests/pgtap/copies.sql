-- copy_object(): the copy shares the bytes of its source, and no change of either answers them as unused.
\ir setup.psql
BEGIN;
SELECT plan(17);
SELECT tap.namespace('tap-copies') AS ns \gset
SELECT tap.namespace('tap-copies-2') AS other \gset
SELECT new_id AS d FROM tap.mkdir(:ns, :ns, 'd/') \gset
CREATE FUNCTION pg_temp.copy(ns bigint, pid bigint, name text, dst_ns bigint, dst_pid bigint, dst_name text,
    condition text DEFAULT NULL, request uuid DEFAULT gen_random_uuid(), version bigint DEFAULT NULL)
RETURNS TABLE (code text, replayed boolean, old_locator text) LANGUAGE sql AS $$
    SELECT c.code, c.replayed, c.old_locator
      FROM (SELECT m.id, m.version FROM tap.meta() AS m WHERE m.pid = $2 AND m.name = $3 COLLATE "C" AND m.ts = 0) AS s
      RIGHT JOIN (VALUES (1)) AS one ON true
      CROSS JOIN LATERAL mantle.copy_object(5, $1, $2, $3, coalesce(s.id, 1), coalesce($9, s.version, 1), $4, $5, $6,
        tap.id(), 7, 8, 420, 'text/copy', '{"a": "b"}', $7, $8, 1, p_caller => '0') AS c
$$;
SELECT tap.put(:ns, :ns, 's', 100, locator => 'objects/00/s') AS x \gset
SELECT tap.put(:ns, :ns, 'old', 1, locator => 'objects/00/old') AS x \gset
SELECT tap.put(:ns, :ns, 'imported', 1) AS x \gset
SELECT version FROM tap.meta() WHERE pid = :ns AND name = 's' \gset

SELECT results_eq(format('SELECT * FROM pg_temp.copy(%s, %s, ''s'', %s, %s, ''c'')', :ns, :ns, :ns, :d),
    'VALUES (NULL::text, false, NULL::text)', 'a copy');
SELECT results_eq(format('SELECT name COLLATE "default", size, locator COLLATE "default", shared, version, content_type, user_metadata,
    owner FROM tap.meta() WHERE pid IN (%s, %s) AND name IN (''s'', ''c'') ORDER BY name COLLATE "C"', :ns, :d),
    format($$ VALUES ('c', 100::bigint, 'objects/00/s', true, 1::bigint, 'text/copy', '{"a": "b"}'::jsonb, 7),
           ('s', 100, 'objects/00/s', true, %s, 'text/plain', NULL, 7) $$, :version),
    'has the bytes and the size of its source, whose version stays');
SELECT results_eq('SELECT objects, bytes FROM mantle.du(''tap-copies'', '''')', 'VALUES (4::bigint, 202::bigint)',
    'and counts');
SELECT results_eq(format('SELECT * FROM pg_temp.copy(%s, %s, ''s'', %s, %s, ''old'')', :ns, :ns, :ns, :ns),
    'VALUES (NULL::text, false, ''objects/00/old''::text)', 'over another object, whose bytes are left');
SELECT results_eq(format('SELECT * FROM pg_temp.copy(%s, %s, ''s'', %s, %s, ''c'')', :ns, :ns, :ns, :d),
    'VALUES (NULL::text, false, NULL::text)', 'over a copy, whose bytes are shared');
SELECT results_eq(format('SELECT * FROM pg_temp.copy(%s, %s, ''s'', %s, %s, ''c'')', :ns, :ns, :other, :other),
    'VALUES (NULL::text, false, NULL::text)', 'into another namespace');
SELECT results_eq(format('SELECT * FROM pg_temp.copy(%s, %s, ''s'', %s, %s, ''s'')', :ns, :ns, :ns, :ns),
    'VALUES (NULL::text, false, NULL::text)', 'onto itself, with other metadata');
SELECT results_eq(format('SELECT version - %s, content_type FROM tap.meta() WHERE pid = %s AND name = ''s''', :version,
    :ns), 'VALUES (1::bigint, ''text/copy'')', 'which is a new version');

\set request '\'' `cat /proc/sys/kernel/random/uuid` '\''
SELECT results_eq(format('SELECT * FROM pg_temp.copy(%s, %s, ''s'', %s, %s, ''r'', NULL, %L)', :ns, :ns, :ns, :d,
    :request), 'VALUES (NULL::text, false, NULL::text)', 'a request');
SELECT results_eq(format('SELECT * FROM pg_temp.copy(%s, %s, ''s'', %s, %s, ''r'', NULL, %L)', :ns, :ns, :ns, :d,
    :request), 'VALUES (NULL::text, true, NULL::text)', 'and its retry');

PREPARE fails AS SELECT code FROM pg_temp.copy($1, $2, $3, $4, $5, $6, $7, gen_random_uuid(), $8);
SELECT results_eq(format('EXECUTE fails(%s, %s, ''none'', %s, %s, ''x'', NULL, NULL)', :ns, :ns, :ns, :d),
    'VALUES (''MT010''::text)', 'no source');
SELECT results_eq(format('EXECUTE fails(%s, %s, ''s'', %s, %s, ''x'', NULL, 99)', :ns, :ns, :ns, :d),
    'VALUES (''MT026''::text)', 'a source that has changed');
SELECT results_eq(format('EXECUTE fails(%s, %s, ''imported'', %s, %s, ''x'', NULL, NULL)', :ns, :ns, :ns, :d),
    'VALUES (''MT032''::text)', 'a source without bytes');
SELECT results_eq(format('EXECUTE fails(%s, %s, ''s'', %s, %s, ''d'', NULL, NULL)', :ns, :ns, :ns, :ns),
    'VALUES (''MT015''::text)', 'a directory has the name');
SELECT results_eq(format('EXECUTE fails(%s, %s, ''s'', %s, %s, ''c'', ''*absent'', NULL)', :ns, :ns, :ns, :d),
    'VALUES (''MT019''::text)', 'a condition that does not hold');

SELECT results_eq(format('SELECT code, old_locator FROM tap.delete(%s, %s, ''s'')', :ns, :ns),
    'VALUES (NULL::text, NULL::text)',
    'the source goes, and nobody may remove the bytes');
SELECT is_empty($$ SELECT * FROM mantle.unused_locators(ARRAY['objects/00/s']) $$, 'for the copies have them');
SELECT * FROM finish();
ROLLBACK;
