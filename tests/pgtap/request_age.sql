-- A request id of version 7 tells when it was made. Without a recorded answer it is refused when its answer may have
-- been purged: after mantle.request_retention_s (a day), or if answers of its time were purged because there were too
-- many.
\ir setup.psql
BEGIN;
SELECT plan(45);
CREATE FUNCTION pg_temp.made(age interval) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM now() - age) * 1000)::bigint), 12, '0') || '7'
        || substr(md5(random()::text), 1, 3)
            || '8' || substr(md5(random()::text), 1, 15))::uuid
$$;
SELECT tap.namespace('tap-request-age') AS ns \gset
SELECT tap.namespace('tap-request-aged') AS x \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SELECT new_id AS d FROM tap.mkdir(:ns, :ns, 'd/') \gset
SELECT new_id AS e FROM tap.mkdir(:ns, :ns, 'e/') \gset
SELECT new_id AS o FROM tap.put(:ns, :a, 'o') \gset

-- Calls each verb with an id of this age.
CREATE FUNCTION pg_temp.answers(ns bigint, a bigint, d bigint, e bigint, o bigint, age interval)
RETURNS TABLE (verb text, code text) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    verb := 'put_object'; code := (SELECT r.code FROM tap.put(ns, a, 'new', request => pg_temp.made(age)) AS r); RETURN
        NEXT;
    verb := 'overwrite'; code := (SELECT r.code FROM tap.put(ns, a, 'o', request => pg_temp.made(age)) AS r); RETURN
        NEXT;
    verb := 'mkdir'; code := (SELECT r.code FROM tap.mkdir(ns, a, 'made/', request => pg_temp.made(age)) AS r); RETURN
        NEXT;
    verb := 'set_attributes';
    code := (SELECT r.code FROM mantle.set_attributes('{5}', ARRAY[ns], ARRAY[a], '{o}', ARRAY[o], '{1}', '{1}',
        '{256}',
                 ARRAY[NULL]::jsonb[], '{NULL}', ARRAY[pg_temp.made(age)], '{0}', p_caller => '{0}') AS r);
    RETURN NEXT;
    verb := 'rename_object'; code := (SELECT r.code FROM mantle.rename_object(5, ns, a, 'o', ns, 'o', false,
        pg_temp.made(age), 0, p_caller => '0') AS r); RETURN NEXT;
    verb := 'delete_object'; code := (SELECT r.code FROM tap.delete(ns, CASE WHEN code IS NULL THEN ns ELSE a END, 'o',
        request => pg_temp.made(age)) AS r); RETURN NEXT;
    verb := 'rename_directory'; code := (SELECT r.code FROM tap.rename(ns, ns, 'd/', d, a, 'd/',
        request => pg_temp.made(age)) AS r); RETURN NEXT;
    verb := 'remove_tree';
    code := (SELECT r.code FROM tap.remove_tree(ns, CASE WHEN code IS NULL THEN a ELSE ns END, 'd/', d,
        request => pg_temp.made(age)) AS r);
    RETURN NEXT;
    verb := 'rmdir'; code := (SELECT r.code FROM tap.rmdir(ns, ns, 'e/', e, request => pg_temp.made(age)) AS r); RETURN
        NEXT;
    verb := 'create_namespace'; code := (SELECT r.code FROM mantle.create_namespace(5, 'tap-request-new', tap.id(), 7,
        8, 493, pg_temp.made(age), 0) AS r); RETURN NEXT;
    verb := 'delete_namespace'; code := (SELECT r.code FROM mantle.delete_namespace(7, 'tap-request-aged',
        pg_temp.made(age), 0) AS r); RETURN NEXT;
    verb := 'replay'; code := (SELECT r.code FROM mantle.replay(5, ns, pg_temp.made(age), 0) AS r); RETURN NEXT;
END $$;
SELECT is(r.code, 'MT021', r.verb || ': too old') FROM pg_temp.answers(:ns, :a, :d, :e, :o, '2 days') AS r;
SELECT is_empty(format('SELECT FROM mantle.requests WHERE ns = %s AND request_id::text LIKE ''________-____-7%%''',
    :ns), 'none leaves an answer');
SELECT is_empty(format('SELECT FROM mantle.rename_attempts WHERE ns = %s', :ns), 'no attempt is recorded');
SELECT is((SELECT string_agg(m.name, ' ' ORDER BY m.name) FROM tap.meta() m WHERE m.pid IN (:ns, :a)
    AND m.id IS NOT NULL), 'a/ d/ e/ o', 'nothing was done');
SELECT is(r.code, NULL, r.verb || ': hours ago, that is well') FROM pg_temp.answers(:ns, :a, :d, :e, :o, '23 hours')
    AS r;

-- Other versions tell no time. Ids from the future count as young. A recorded answer is replayed at any age.
SELECT pg_temp.made('2 days') AS old \gset
SELECT is((SELECT code FROM tap.put(:ns, :a, 'v4', request => overlay(:'old' PLACING '4' FROM 15)::uuid)), NULL,
    'another version');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'variant', request => overlay(:'old' PLACING 'c' FROM 20)::uuid)), NULL,
    'another variant');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'unset', request => '000004a6-f2f9-757d-b72d-71570f4a1231')), NULL,
    'of 1970: no such time');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'ahead', request => pg_temp.made('-2 days'))), NULL,
    'a clock that is ahead');
INSERT INTO mantle.requests (pid, ns, principal, request_id, request_hash, verb, id, version)
VALUES (:a, :ns, 5, :'old', 0, 'put_object', 4711, 3);
SELECT results_eq(format('SELECT code, new_id, replayed FROM tap.put(%s, %s, ''kept'', request => %L)', :ns, :a,
    :'old'),
                  'VALUES (NULL::text, 4711::bigint, true)', 'its answer is still there');
SELECT is((SELECT known FROM mantle.replay(5, :ns, :'old', 0)), true, 'and known');
SELECT ok(NOT mantle.record_request(5, :ns, pg_temp.made('2 days'), 0, 'put_object', :a, 1, 1),
    'an answer that is purged between the look and the record');
SELECT is((SELECT count(*) FROM tap.requests() WHERE ns = :ns AND id = 1), 0::bigint, 'is not recorded anew');

-- A batch: each element alone.
SELECT is((SELECT string_agg(coalesce(p.code, 'done'), ' ' ORDER BY p.ord)
             FROM mantle.put_object('{5,5,5}', ARRAY[:ns, :ns, :ns], ARRAY[:a, :a, :a], '{b1,b2,b3}',
                 ARRAY[tap.id(), tap.id(), tap.id()], '{7,7,7}',
                      '{8,8,8}', '{420,420,420}', '{1,1,1}', '{e,e,e}', '{t,t,t}', ARRAY[NULL, NULL, NULL]::jsonb[],
                          '{l1,l2,l3}', '{NULL,NULL,NULL}',
                      ARRAY[pg_temp.made('0 s'), pg_temp.made('3 days'), pg_temp.made('1 hour')], '{0,0,0}',
                          p_caller => '{0,0,0}') AS p),
                          'done MT021 done', 'a batch');

-- Too many answers: the oldest are purged first, but none of the last minute.
DELETE FROM mantle.requests;
INSERT INTO mantle.requests (pid, ns, principal, request_id, request_hash, verb, id, created)
SELECT :a, :ns, 5, pg_temp.made(age * interval '1 minute'), 0, 'put_object', age, now() - age * interval '1 minute'
    FROM unnest(ARRAY[10, 9, 8, 7, 6, 5]) AS age;
INSERT INTO mantle.requests (pid, ns, principal, request_id, request_hash, verb, id, created)
VALUES (:a, :ns, 5, pg_temp.made('30 s'), 0, 'put_object', 0, now() - interval '30 s');
SELECT is(mantle.purge_oldest_requests(4, 3), 3::bigint, 'a batch of the oldest');
SELECT results_eq('SELECT id FROM tap.requests() ORDER BY created', 'VALUES (7::bigint), (6), (5), (0)',
    'the others stay');
SELECT is((SELECT up_to FROM mantle.purged_requests), now() - interval '8 minutes', 'it is known up to when');
SELECT is(mantle.purge_oldest_requests(1, 3), 1::bigint, 'as many as are too many');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'bounded', request => pg_temp.made('8 minutes'))), 'MT021',
    'an id that may be among the purged');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'bounded', request => pg_temp.made('7 minutes'))), 'MT021',
    'that of the last one purged');
SELECT is((SELECT code FROM tap.put(:ns, :a, 'bounded', request => pg_temp.made('6.5 minutes'))), NULL,
    'one that is younger');
SELECT is(mantle.purge_oldest_requests(100, 100), 2::bigint, 'those of the last minute stay');
SELECT is((SELECT up_to FROM mantle.purged_requests), now() - interval '5 minutes',
    'so ids of the last minute need no look');
SELECT * FROM finish();
ROLLBACK;
