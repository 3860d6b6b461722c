-- Interleavings of two sessions that docs/protocols.md names; each description begins with the number of its rule.
-- Session a does its part and holds its transaction open. Session b waits for it, or does not. Then a ends, and b's
-- answer is compared.
\ir setup.psql
SELECT plan(45);
SELECT tap.connect('tap_a') || tap.connect('tap_b') AS x \gset
SELECT tap.namespace('tap-races') AS ns \gset
SELECT first_id AS i FROM mantle.allocate_ids('races', 1000) \gset
CREATE SEQUENCE tap.races_id;
SELECT setval('tap.races_id', :i) AS x \gset
CREATE FUNCTION tap.dir(ns bigint, pid bigint, name text) RETURNS bigint LANGUAGE sql AS $$
    SELECT new_id FROM tap.mkdir(ns, pid, name, id => nextval('tap.races_id')) $$;

-- Statements for the sessions. Ids come from a sequence, because allocating one would latch the allocation.
CREATE FUNCTION pg_temp.put(ns bigint, pid bigint, name text, size int DEFAULT 1,
    request uuid DEFAULT gen_random_uuid()) RETURNS text LANGUAGE sql AS $$
    SELECT format('SELECT coalesce(code, ''ok'') || CASE WHEN replayed THEN '' replayed'' ELSE '''' END
        FROM tap.put(%s, %s, %L, %s, id => %s, request => %L)', ns, pid, name, size, nextval('tap.races_id'), request)
        $$;
CREATE FUNCTION pg_temp.mkdir(ns bigint, pid bigint, name text) RETURNS text LANGUAGE sql AS $$
    SELECT format('SELECT coalesce(code, ''ok'') FROM tap.mkdir(%s, %s, %L, id => %s)', ns, pid, name,
        nextval('tap.races_id')) $$;
CREATE FUNCTION pg_temp.rmdir(ns bigint, pid bigint, name text, id bigint) RETURNS text LANGUAGE sql AS $$
    SELECT format('SELECT coalesce(code, ''ok'') FROM tap.rmdir(%s, %s, %L, %s)', ns, pid, name, id) $$;
CREATE FUNCTION pg_temp.rename(ns bigint, sp bigint, sn text, si bigint, dp bigint, dn text, victim bigint DEFAULT 0,
    request uuid DEFAULT gen_random_uuid(), attempt int DEFAULT 1) RETURNS text LANGUAGE sql AS $$
    SELECT format('SELECT coalesce(code, ''ok'') FROM tap.rename(%s, %s, %L, %s, %s, %L, %s, %s, %L)', ns, sp, sn, si,
        dp, dn, victim, attempt, request) $$;
CREATE FUNCTION pg_temp.race(a text, b text, ending text DEFAULT 'COMMIT') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_a text;
    v_blocked boolean;
BEGIN
    PERFORM dblink_exec('tap_a', 'BEGIN');
    v_a := (SELECT r.t FROM dblink('tap_a', a) AS r(t text));
    PERFORM dblink_send_query('tap_b', b);
    v_blocked := tap.is_blocked('tap_b');
    PERFORM dblink_exec('tap_a', ending);
    RETURN concat_ws(', ', v_a, CASE WHEN NOT v_blocked THEN 'NOT BLOCKED' END, tap.answer('tap_b'));
END $$;
-- b must get its answer while a's transaction is open.
CREATE FUNCTION pg_temp.pass(a text, b text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE v_a text; v_b text;
BEGIN
    PERFORM dblink_exec('tap_a', 'BEGIN');
    v_a := (SELECT r.t FROM dblink('tap_a', a) AS r(t text));
    PERFORM dblink_exec('tap_b', 'SET statement_timeout = ''5s''');
    v_b := (SELECT r.t FROM dblink('tap_b', b) AS r(t text));
    PERFORM dblink_exec('tap_b', 'RESET statement_timeout');
    PERFORM dblink_exec('tap_a', 'COMMIT');
    RETURN concat_ws(', ', v_a, v_b);
END $$;

-- P7: latch first, then read.
SELECT tap.dir(:ns, :ns, 'd7a/') AS a, tap.dir(:ns, :ns, 'd7b/') AS b, tap.dir(:ns, :ns, 'd7c/') AS c \gset
SELECT is(pg_temp.race(pg_temp.put(:ns, :a, 'o'), pg_temp.rmdir(:ns, :ns, 'd7a/', :a)), 'ok, MT017',
    'P7: a create under way, then rmdir: not empty');
SELECT is(pg_temp.race(pg_temp.rmdir(:ns, :ns, 'd7b/', :b), pg_temp.put(:ns, :b, 'o')), 'ok, MT018',
    'P7: rmdir under way, then a create: removed');
SELECT is(pg_temp.race(pg_temp.rmdir(:ns, :ns, 'd7c/', :c), pg_temp.mkdir(:ns, :c, 'o/'), 'ROLLBACK'), 'ok, ok',
    'P7: rmdir taken back, then a create');

-- P10, P11: deltas, compaction.
SELECT tap.dir(:ns, :ns, 'd10/') AS d \gset
SELECT is(pg_temp.pass(pg_temp.put(:ns, :d, 'o1', 1), pg_temp.put(:ns, :d, 'o2', 2)), 'ok, ok',
    'P10: no record yet: b does not wait');
SELECT mantle.compact(:d) AS x \gset
SELECT is(pg_temp.pass(pg_temp.put(:ns, :d, 'o3', 4), pg_temp.put(:ns, :d, 'o4', 8)), 'ok, ok',
    'P10: the primary record is held: b does not wait');
SELECT is((SELECT count(*) FROM tap.meta() WHERE pid = :d AND ts > 0), 1::bigint, 'P10: one in place, one delta');
SELECT is((SELECT bytes FROM mantle.dirstat(:ns, ARRAY[:d])), 15::bigint, 'P10: nothing is lost');
SELECT is(pg_temp.race(pg_temp.put(:ns, :d, 'o5', 16), format('SELECT mantle.compact(%s)::text', :d)), 'ok, 1',
    'P10: compaction waits for the primary record');
SELECT is((SELECT bytes FROM mantle.dirstat(:ns, ARRAY[:d])), 31::bigint, 'P10: and loses nothing');
SELECT is(pg_temp.pass(format('SELECT mantle.compact(%s)::text', :d), pg_temp.put(:ns, :d, 'o6', 32)), '0, ok',
    'P11: a create passes a compaction');
SELECT tap.dir(:ns, :ns, 'd10b/') AS e \gset
SELECT dblink_exec('tap_a', 'BEGIN') AS x \gset
SELECT count(*) AS x FROM dblink('tap_a', pg_temp.put(:ns, :e, 'p1', 1)) AS r(t text) \gset
SELECT count(*) AS x FROM dblink('tap_b', pg_temp.put(:ns, :e, 'p2', 2)) AS r(t text) \gset
SELECT is(mantle.compact(:e), 1::bigint, 'P10: compaction makes the record while a first delta is uncommitted');
SELECT dblink_exec('tap_a', 'COMMIT') AS x \gset
SELECT is((SELECT bytes FROM mantle.dirstat(:ns, ARRAY[:e])), 3::bigint, 'P10: both count');

-- P13: overwrites.
SELECT count(*) AS x FROM dblink('tap_a', pg_temp.put(:ns, :ns, 'o13', 10)) AS r(t text) \gset
SELECT bytes AS before FROM mantle.dirstat(:ns, ARRAY[:ns]) \gset
SELECT is(pg_temp.race(pg_temp.put(:ns, :ns, 'o13', 20), pg_temp.put(:ns, :ns, 'o13', 30)), 'ok, ok',
    'P13: two overwrites, one after the other');
SELECT is((SELECT bytes FROM mantle.dirstat(:ns, ARRAY[:ns])), :before + 20::bigint,
    'P13: counted as the last one''s size');

-- P16: overwriting renames.
SELECT tap.dir(:ns, :ns, 's16/') AS s, tap.dir(:ns, :ns, 'v16/') AS v, tap.dir(:ns, :ns, 'w16/') AS w \gset
SELECT is(pg_temp.race(pg_temp.put(:ns, :v, 'o'), pg_temp.rename(:ns, :ns, 's16/', :s, :ns, 'v16/', :v)), 'ok, MT017',
    'P16: a create in the victim, then the rename: not empty');
SELECT is(pg_temp.race(pg_temp.rename(:ns, :ns, 's16/', :s, :ns, 'w16/', :w), pg_temp.put(:ns, :w, 'o')), 'ok, MT018',
    'P16: the rename, then a create in the victim: removed');

-- P17: last deletes, pruning.
SELECT new_id AS p FROM tap.mkdir(:ns, :ns, 'p17/', false, id => nextval('tap.races_id')) \gset
SELECT count(*) AS x FROM dblink('tap_a', pg_temp.put(:ns, :p, 'o1')) AS r(t text) \gset
SELECT count(*) AS x FROM dblink('tap_a', pg_temp.put(:ns, :p, 'o2')) AS r(t text) \gset
SELECT dblink_exec('tap_a', 'BEGIN') AS x \gset
SELECT count(*) AS x FROM dblink('tap_a', format('SELECT code FROM tap.delete(%s, %s, ''o1'')', :ns, :p))
    AS r(t text) \gset
SELECT code AS x FROM tap.delete(:ns, :p, 'o2') \gset
SELECT is(mantle.prune(:p), true, 'P17: seen from outside one object is left');
SELECT ok(EXISTS (SELECT FROM tap.meta() WHERE id = :p AND explicit IS NOT NULL), 'P17: it is not pruned');
SELECT dblink_exec('tap_a', 'COMMIT') AS x \gset
SELECT cmp_ok((SELECT count(*) FROM tap.prune_queue() WHERE id = :p), '>=', 2::bigint,
    'P17: both deletes asked for pruning');
SELECT dblink_exec('tap_a', 'BEGIN') AS x \gset
SELECT count(*) AS x FROM dblink('tap_a', pg_temp.put(:ns, :p, 'o3')) AS r(t text) \gset
SELECT is(mantle.prune(:p), false, 'P17: a create is under way: later');
SELECT dblink_exec('tap_a', 'ROLLBACK') AS x \gset
SELECT is(pg_temp.race(format('SELECT mantle.prune(%s)::text', :p), pg_temp.put(:ns, :p, 'o4')), 'true, MT018',
    'P17: pruning under way, then a create: removed');
\if :distributed
SELECT skip('on Citus the pruner looks whether a directory stays', 2);
\else
SELECT tap.dir(:ns, :ns, 'e17/') AS e \gset
SELECT tap.dir(:ns, :e, 's17/') AS s \gset
SELECT is(pg_temp.race(pg_temp.rename(:ns, :e, 's17/', :s, :ns, 't17/'), format('SELECT coalesce(code, ''ok'')
    FROM mantle.set_attributes(''{5}'', ARRAY[%s], ARRAY[%1$s], ''{e17/}'', ARRAY[%s], ''{NULL}'', ''{NULL}'', ''{NULL}'',
                               ARRAY[NULL]::jsonb[], ''{f}'', ARRAY[gen_random_uuid()], ''{0}'', p_caller => ''{0}'')',
    :ns, :e)), 'ok, ok', 'P17: the last entry goes, then its directory is made implicit');
SELECT is((SELECT count(*) FROM tap.prune_queue() WHERE id = :e), 1::bigint, 'P17: which asks for pruning');
\endif

-- P19: one request twice at once.
SELECT tap.dir(:ns, :ns, 'd19/') AS d \gset
SELECT is(pg_temp.race(pg_temp.put(:ns, :ns, 'o19', 1, '19191919-0000-0000-0000-000000000001'),
    pg_temp.put(:ns, :ns, 'o19', 1, '19191919-0000-0000-0000-000000000001')), 'ok, ok replayed',
    'P19: the second gets the first one''s answer');
\if :distributed
-- An answer is stored where the change was. A verb finds those of its own directory, mantle.replay finds all.
SELECT skip('on Citus a request id is one directory''s', 3);
\else
SELECT is(pg_temp.race(pg_temp.put(:ns, :ns, 'q19', 1, '19191919-0000-0000-0000-000000000002'),
    pg_temp.put(:ns, :d, 'q19', 1, '19191919-0000-0000-0000-000000000002')), 'ok, ok replayed',
    'P19: even if it resolves elsewhere');
SELECT is((SELECT count(*) FROM mantle.list(:ns, :d, NULL, NULL, 10)), 0::bigint, 'P19: where nothing is made');
SELECT is(pg_temp.race(pg_temp.put(:ns, :ns, 'r19', 1, '19191919-0000-0000-0000-000000000003'),
    pg_temp.put(:ns, :d, 'r19', 1, '19191919-0000-0000-0000-000000000003'), 'ROLLBACK'), 'ok, ok',
    'P19: the first is taken back: the second is the first');
\endif

-- P20: attempts.
SELECT tap.dir(:ns, :ns, 's20/') AS s \gset
CREATE FUNCTION pg_temp.abort(ns bigint, request uuid, attempt int) RETURNS text LANGUAGE sql
    AS $$ SELECT format('SELECT mantle.abort_rename(5, %s, %L, %s)', ns, request, attempt) $$;
SELECT is(pg_temp.race(pg_temp.rename(:ns, :ns, 's20/', :s, :ns, 't20/', 0, '20202020-0000-0000-0000-000000000001'),
    pg_temp.abort(:ns, '20202020-0000-0000-0000-000000000001', 1), 'ROLLBACK'), 'ok, aborted',
    'P20: a rename taken back, then its abort');
SELECT is((SELECT code FROM tap.rename(:ns, :ns, 's20/', :s, :ns, 't20/', 0, 1,
    '20202020-0000-0000-0000-000000000001')), 'MT025', 'P20: a late commit cannot happen');
SELECT is(pg_temp.race(pg_temp.rename(:ns, :ns, 's20/', :s, :d, 't20/', 0, '20202020-0000-0000-0000-000000000002'),
    pg_temp.abort(:ns, '20202020-0000-0000-0000-000000000002', 1)), 'ok, committed',
    'P20: a rename that commits, then its abort');
SELECT is(pg_temp.race(pg_temp.rename(:ns, :ns, 's20/', :s, :ns, 't20/', 0, '20202020-0000-0000-0000-000000000003'),
    pg_temp.abort(:ns, '20202020-0000-0000-0000-000000000003', 1)), 'MT026, aborted',
    'P20: a refused rename has not committed');
SELECT is(pg_temp.race(pg_temp.abort(:ns, '20202020-0000-0000-0000-000000000004', 1),
    pg_temp.rename(:ns, :d, 't20/', :s, :ns, 's20/', 0, '20202020-0000-0000-0000-000000000004')), 'aborted, MT025',
    'P20: an abort, then the rename');

-- P21: epochs.
SELECT epoch AS e FROM mantle.index_group(1) \gset
SELECT is(pg_temp.race(pg_temp.rename(:ns, :d, 't20/', :s, :ns, 's21/'),
    format('SELECT mantle.raise_epoch(1, %s, ''c'')::text', :e)), format('ok, %s', :e + 1),
    'P21: raising waits for a rename under way');
SELECT is(pg_temp.race(format('SELECT mantle.raise_epoch(1, %s, ''c'')::text', :e + 1),
    pg_temp.rename(:ns, :ns, 's21/', :s, :d, 't20/')), format('%s, MT024', :e + 2),
    'P21: a rename waits for the raise, and is refused');
SELECT is(mantle.raise_epoch(1, :e, 'c'), NULL, 'P21: only from the expected epoch');

-- P29: an object and a directory of one name.
SELECT is(pg_temp.race(pg_temp.mkdir(:ns, :ns, 'x29/'), pg_temp.put(:ns, :ns, 'x29')), 'ok, MT015',
    'P29: the directory first');
SELECT is(pg_temp.race(pg_temp.put(:ns, :ns, 'y29'), pg_temp.mkdir(:ns, :ns, 'y29/')), 'ok, MT016',
    'P29: the object first');
SELECT is(pg_temp.race(format('SELECT inserted::text FROM mantle.import_objects(5, %s, ARRAY[%s], ''{z29}'', ''{1}'',
    %s, true, now())', :ns, :ns, :i + 900), pg_temp.mkdir(:ns, :ns, 'z29/')), '1, MT016', 'P29: an import first');
SELECT is(pg_temp.race(pg_temp.rename(:ns, :ns, 's21/', :s, :ns, 'w29/'), pg_temp.put(:ns, :ns, 'w29')), 'ok, MT015',
    'P29: a rename to it first');

-- P12: batches in opposite orders do not deadlock; P9: blocks do not overlap.
CREATE FUNCTION tap.batch(ns bigint, names text[], ids bigint[], requests uuid[]) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(coalesce(code, 'ok'), ' ') FROM mantle.put_object('{5,5}', ARRAY[ns, ns],
        array_fill(ns, ARRAY[2]), names, ids, '{1,1}', '{1,1}', '{1,1}', '{1,1}',
        '{e,e}', '{t,t}', ARRAY[NULL, NULL]::jsonb[], '{l,l}', '{NULL,NULL}', requests, '{0,0}',
            p_caller => '{0,0}') $$;
SELECT is(pg_temp.race(format('SELECT tap.batch(%s, ''{k12,l12}'', ARRAY[%s, %s], ARRAY[%L, %L]::uuid[])', :ns,
    :i + 901, :i + 902, gen_random_uuid(), gen_random_uuid()),
                       format('SELECT tap.batch(%s, ''{l12,k12}'', ARRAY[%s, %s], ARRAY[%L, %L]::uuid[])', :ns,
                           :i + 903, :i + 904, gen_random_uuid(), gen_random_uuid())), 'ok ok, ok ok',
                           'P12: opposite orders');
SELECT dblink_exec('tap_a', 'BEGIN') AS x \gset
SELECT * FROM dblink('tap_a', pg_temp.put(:ns, :ns, 'm12')) AS t(t text) \gset
SELECT throws_ok(format('SELECT tap.batch(%s, ''{m12,n12}'', ARRAY[%s, %s], ARRAY[%L, %L]::uuid[])', :ns, :i + 905,
    :i + 906, gen_random_uuid(), gen_random_uuid()), '55P03', NULL, 'P12: a batch does not wait for long');
SELECT is(current_setting('lock_timeout'), '0', 'P12: which ends with it');
SELECT dblink_exec('tap_a', 'ROLLBACK') AS x \gset
SELECT is(tap.batch(:ns, '{m12,n12}', ARRAY[:i + 905, :i + 906]::bigint[],
    ARRAY[gen_random_uuid(), gen_random_uuid()]), 'ok ok', 'P12: and can be repeated');
SELECT ok(split_part(r.t, ', ', 2)::bigint > split_part(r.t, ', ', 1)::bigint,
    'P9: an allocation waits for the one in progress')
  FROM pg_temp.race('SELECT last_id::text FROM mantle.allocate_ids(''x'', 5)',
      'SELECT first_id::text FROM mantle.allocate_ids(''x'', 5)') AS r(t);
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');
SELECT dblink_disconnect('tap_a') || dblink_disconnect('tap_b') AS x \gset
DROP FUNCTION tap.dir(bigint, bigint, text), tap.batch(bigint, text[], bigint[], uuid[]);
DROP SEQUENCE tap.races_id;
SELECT * FROM finish();
