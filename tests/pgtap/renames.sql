-- Batches of renames and of lists: each element alone, in the order given.
\ir setup.psql
BEGIN;
SELECT plan(26);
SELECT tap.namespace('tap-renames') AS ns \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SELECT new_id AS b FROM tap.mkdir(:ns, :ns, 'b/') \gset
SELECT new_id AS c FROM tap.mkdir(:ns, :ns, 'c/') \gset
SELECT new_id AS o FROM tap.put(:ns, :a, 'o', 10, locator => 'lo') \gset
SELECT new_id AS p FROM tap.put(:ns, :a, 'p', 20, locator => 'lp') \gset
SELECT new_id AS q FROM tap.put(:ns, :b, 'q', 30, locator => 'lq') \gset
CREATE FUNCTION pg_temp.fill(v bigint, n int) RETURNS bigint[] LANGUAGE sql AS $$ SELECT array_fill(v, ARRAY[n]) $$;
CREATE FUNCTION pg_temp.request(i int) RETURNS uuid LANGUAGE sql
    AS $$ SELECT ('00000000-0000-4000-8000-' || lpad(i::text, 12, '0'))::uuid $$;
CREATE FUNCTION pg_temp.rename(ns bigint, first int, src bigint[], src_name text[], dst bigint[], dst_name text[],
    overwrite boolean[] DEFAULT NULL,
                               principal int[] DEFAULT NULL)
RETURNS TABLE (ord int, code text, id bigint, replayed boolean, old_locator text) LANGUAGE plpgsql AS $$
DECLARE n int := cardinality(src);
BEGIN
    RETURN QUERY SELECT r.ord, r.code, r.id, r.replayed, r.old_locator
      FROM mantle.rename_object(coalesce(principal, array_fill(5, ARRAY[n])), pg_temp.fill(ns, n), src, src_name, dst,
          dst_name,
               coalesce(overwrite, array_fill(false, ARRAY[n])), ARRAY(SELECT pg_temp.request(first + i)
                   FROM generate_series(1, n) AS i), pg_temp.fill(0, n),
               p_caller => array_fill('0'::text, ARRAY[n])) AS r;
END $$;
PREPARE chain (bigint, bigint, bigint, bigint) AS SELECT r.ord, r.code, r.id, r.replayed
    FROM pg_temp.rename($1, 0, ARRAY[$2, $3, $2], '{o,o1,p}', ARRAY[$3, $4, $3], '{o1,o2,o1}') AS r ORDER BY r.ord;

-- A chain: the second element moves what the first has moved, the third moves to the place that became free.
SELECT results_eq(format('EXECUTE chain(%s, %s, %s, %s)', :ns, :a, :b, :c),
    format($$ VALUES (1, NULL::text, %s::bigint, false), (2, NULL, %s, false), (3, NULL, %s, false) $$, :o, :o, :p),
        'a chain');
SELECT results_eq(format('SELECT entries, bytes FROM mantle.dirstat(%s, ARRAY[%s, %s, %s])', :ns, :a, :b, :c),
    'VALUES (0::bigint, 0::bigint), (2, 50), (1, 10)', 'is counted');
SELECT results_eq(format('EXECUTE chain(%s, %s, %s, %s)', :ns, :a, :b, :c),
    format($$ VALUES (1, NULL::text, %s::bigint, true), (2, NULL, %s, true), (3, NULL, %s, true) $$, :o, :o, :p),
        'and answered again');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');

-- Good and bad elements.
SELECT results_eq(format($$ SELECT r.ord, r.code, r.old_locator
    FROM pg_temp.rename(%1$s, 100, ARRAY[%2$s, %3$s, %3$s, %3$s, %3$s, NULL, %3$s, %3$s], '{none,o1,q,q,q/,q,q,q}',
        ARRAY[%3$s, %4$s, NULL, %1$s, %4$s, %4$s, %4$s, %4$s], '{x,o2,x,a,x,x,x,o2}', '{f,f,f,f,f,f,NULL,t}',
            '{5,5,5,5,5,5,5,5}') AS r ORDER BY r.ord $$, :ns, :a, :b, :c),
    $$ VALUES (1, 'MT010', NULL::text), (2, 'MT012', NULL), (3, 'MT006', NULL), (4, 'MT015', NULL), (5, 'MT001', NULL),
        (6, 'MT006', NULL), (7, 'MT006', NULL),
              (8, NULL, 'lo') $$, 'each bad one by itself');
SELECT is((SELECT string_agg(coalesce(r.code, 'done'), ' ' ORDER BY r.ord)
             FROM pg_temp.rename(:ns, 200, ARRAY[:b, :c], '{o1,o2}', ARRAY[:a, :a], '{p,q}', NULL, '{NULL,5}') AS r),
                 'MT006 done', 'a principal that is NULL');
SELECT results_eq(format('SELECT l.name, l.id FROM mantle.list(%1$s, %2$s, NULL, NULL, 10) AS l', :ns, :a),
    format($$ VALUES ('q', %s::bigint) $$, :q), 'done, with its id');
SELECT is((SELECT string_agg(coalesce(r.code, 'done'), ' ' ORDER BY r.ord)
             FROM mantle.rename_object('{5,5}', pg_temp.fill(:ns, 2), ARRAY[:a, :b], '{q,o1}', ARRAY[:a, :c], '{z,r}',
                 '{f,f}',
                      ARRAY[pg_temp.request(202), pg_temp.request(300)], '{7,0}',
                          p_caller => '{0,0}') AS r), 'MT020 done',
                          'an id of another request');
SELECT throws_ok($$ SELECT * FROM mantle.rename_object('{5}', '{1}', '{1}', '{a,b}', '{1,1}', '{a,b}', '{f,f}',
    ARRAY[NULL, NULL]::uuid[], '{0,0}', p_caller => '{0}') $$, 'MT006', NULL, 'arrays of unequal lengths');
SELECT throws_ok(format($$ SELECT * FROM pg_temp.rename(%1$s, 1000, pg_temp.fill(%2$s, 520),
    ARRAY(SELECT 'n' || i FROM generate_series(1, 520) AS i),
        pg_temp.fill(%2$s, 520), ARRAY(SELECT 'm' || i FROM generate_series(1, 520) AS i)) $$, :ns, :a), 'MT007', NULL,
            'more latches than a batch may take');
SELECT is((SELECT count(*) FROM mantle.rename_object('{}'::int[], '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}',
    p_caller => '{}')),
    0::bigint, 'none');

-- Directories: a chain, a directory that is emptied and replaced in the same call, and bad elements.
SELECT new_id AS s FROM tap.mkdir(:ns, :a, 's/') \gset
SELECT new_id AS v FROM tap.mkdir(:ns, :b, 'v/') \gset
SELECT new_id AS w FROM tap.mkdir(:ns, :v, 'w/') \gset
SELECT g.epoch FROM mantle.index_groups g WHERE g.index_group = 1 \gset
CREATE FUNCTION pg_temp.rename_directories(ns bigint, first int, src bigint[], src_name text[], src_id bigint[],
    dst bigint[], dst_name text[], victim bigint[], epoch bigint[])
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean) LANGUAGE plpgsql AS $$
DECLARE
    n int := cardinality(src);
    v_proofs bytea[];
BEGIN
    FOR i IN 1..n LOOP
        v_proofs[i] := mantle.prove(1, epoch[i], first + i, 5, ns, pg_temp.request(first + i), src[i], src_name[i],
            src_id[i], dst[i], dst_name[i], victim[i]);
    END LOOP;
    RETURN QUERY SELECT r.ord, r.code, r.id, r.version, r.replayed
      FROM mantle.rename_directory(array_fill(5, ARRAY[n]), pg_temp.fill(ns, n), src, src_name, src_id, dst, dst_name,
          victim, 1, epoch,
               ARRAY(SELECT (first + i)::bigint FROM generate_series(1, n) AS i),
                   ARRAY(SELECT pg_temp.request(first + i) FROM generate_series(1, n) AS i),
               pg_temp.fill(0, n), p_caller => array_fill('0'::text, ARRAY[n]), p_proof => v_proofs) AS r;
END $$;
PREPARE directories (bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint) AS SELECT r.ord, r.code,
    r.version, r.replayed FROM pg_temp.rename_directories($1, 2000, ARRAY[$2, $3, $3, $4], '{s/,t/,none/,w/}',
    ARRAY[$5, $5, $5, $7], ARRAY[$3, $8, $8, $8], '{t/,u/,x/,w/}', '{0,0,0,0}', ARRAY[$6, $6, $6, $6]) AS r
        ORDER BY r.ord;
SELECT results_eq(format('EXECUTE directories(%s, %s, %s, %s, %s, %s, %s, %s)', :ns, :a, :b, :v, :s, :epoch, :w, :c),
    $$ VALUES (1, NULL::text, 2::bigint, false), (2, NULL, 3, false), (3, 'MT026', NULL, false),
        (4, NULL, 2, false) $$, 'a chain, a bad one, and one more');
SELECT results_eq(format('EXECUTE directories(%s, %s, %s, %s, %s, %s, %s, %s)', :ns, :a, :b, :v, :s, :epoch, :w, :c),
    $$ VALUES (1, NULL::text, 2::bigint, true), (2, NULL, 3, true), (3, 'MT026', NULL, false), (4, NULL, 2, true) $$,
        'answered again');
SELECT is(mantle.path_of('tap-renames', :s), 'c/u/', 'it is at the end of the chain');
SELECT is((SELECT count(*) FROM tap.rename_attempts() WHERE ns = :ns), 3::bigint, 'attempts of those that are done');
-- Moves w/ out of x/, then replaces x/ by u/.
SELECT new_id AS x FROM tap.mkdir(:ns, :ns, 'x/') \gset
SELECT code AS y FROM tap.rename(:ns, :c, 'w/', :w, :x, 'w/', attempt => 2100) \gset
SELECT results_eq(format('SELECT r.ord, r.code FROM pg_temp.rename_directories(%1$s, 2200, ARRAY[%2$s, %3$s, %3$s],
    ''{w/,u/,u/}'', ARRAY[%4$s, %5$s, %5$s],
        ARRAY[%3$s, %1$s, %1$s], ''{w/,x/,y/}'', ARRAY[0, %2$s, 0], ARRAY[%6$s, %6$s, %6$s + 1]) AS r ORDER BY r.ord',
            :ns, :x, :c, :w, :s, :epoch),
    $$ VALUES (1, NULL::text), (2, NULL), (3, 'MT024') $$, 'one that the same call empties may be replaced');
SELECT is(mantle.path_of('tap-renames', :s), 'x/', 'and is');
SELECT is((SELECT code FROM tap.put(:ns, :x, 'late')), 'MT018', 'with a tombstone');
SELECT results_eq(format('SELECT entries, subdirectories FROM mantle.dirstat(%s, ARRAY[%s, %s])', :ns, :ns, :c),
                  'VALUES (4::bigint, 4::bigint), (2, 1)', 'counted');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');

-- Lists.
SELECT count(tap.put(:ns, :a, n)) AS y FROM unnest('{k1,k2,k3}'::text[]) AS n \gset
SELECT results_eq(format('SELECT ord, name FROM mantle.list(%1$s, ARRAY[%2$s, %3$s, %2$s, %4$s],
    ''{k1,NULL,NULL,NULL}'', ''{k,NULL,NULL,v}'', 2)', :ns, :a, :w, :b),
    $$ VALUES (1, 'k2'), (1, 'k3'), (3, 'k1'), (3, 'k2'), (4, 'v/') $$,
        'several directories, each from where it is wanted');
SELECT results_eq(format('SELECT ord, name, id, owner, grp, mode, version, size, etag, locator FROM mantle.list(%1$s,
    ARRAY[%2$s], ''{NULL}'', ''{NULL}'', 10)', :ns, :c),
                  format('SELECT 1, name, id, owner, grp, mode, version, size, etag, locator FROM mantle.list(%1$s,
                      %2$s, NULL, NULL, 10)', :ns, :c), 'as one is listed');
SELECT is_empty(format('SELECT FROM mantle.list(%s, ''{}''::bigint[], ''{}'', ''{}'', 10)', :ns), 'none');

-- Privileges are those of the single renames.
SELECT results_eq($$ SELECT p.proname::text COLLATE "default",
    array_agg(DISTINCT a.grantee::regrole::text ORDER BY a.grantee::regrole::text), count(DISTINCT p.oid)
                       FROM pg_proc p CROSS JOIN LATERAL aclexplode(p.proacl) AS a
                      WHERE p.pronamespace = 'mantle'::regnamespace AND p.proname IN ('list', 'rename_directory',
                          'rename_object') AND a.grantee <> p.proowner
                      GROUP BY 1 ORDER BY 1 $$,
    $$ VALUES ('list', '{mantle_gateway}'::text[], 2::bigint), ('rename_directory', '{mantle_gateway}', 2),
        ('rename_object', '{mantle_gateway}', 2) $$, 'the gateway''s');
SET LOCAL ROLE mantle_gateway;
SELECT is((SELECT r.code FROM mantle.rename_object('{5}', ARRAY[:ns], ARRAY[:a], '{k1}', ARRAY[:a], '{k4}', '{f}',
    ARRAY[gen_random_uuid()], '{0}', p_caller => '{0}') AS r), NULL, 'which calls them');
RESET ROLE;
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');
SELECT * FROM finish();
ROLLBACK;
