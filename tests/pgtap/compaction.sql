-- The worker's compaction: many directories a step, in rounds. Busy directories are compacted between rounds too.
\ir setup.psql
SELECT plan(16);
SELECT tap.connect('tap_a') AS x \gset
SELECT tap.namespace('tap-compaction') AS ns \gset
SELECT first_id AS i FROM mantle.allocate_ids('compaction', 1000) \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SELECT new_id AS b FROM tap.mkdir(:ns, :ns, 'b/') \gset
SELECT new_id AS c FROM tap.mkdir(:ns, :ns, 'c/') \gset
CREATE FUNCTION pg_temp.deltas(VARIADIC pids bigint[]) RETURNS bigint[] LANGUAGE sql AS $$
    SELECT ARRAY(SELECT (SELECT count(*) FROM tap.meta() AS m WHERE m.pid = p AND m.ts > 0) FROM unnest(pids) AS p) $$;
CREATE FUNCTION pg_temp.round() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE n bigint := 0;
BEGIN
    WHILE mantle.run_maintenance('compact') > 0 LOOP n := n + 1; END LOOP;
    RETURN n;
END $$;
CREATE FUNCTION pg_temp.is_busy(pid bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT coalesce(pid = ANY (current_setting('mantle.compact_busy', true)::bigint[]), false) $$;
SELECT pg_temp.round() AS x \gset

SET mantle.delta_records = always;
SELECT count(tap.put(:ns, :a, 'o' || n, 1, id => :i + n)) AS x FROM generate_series(1, 3) n \gset
SELECT count(tap.put(:ns, :b, 'o' || n, 1, id => :i + 10 + n)) AS x FROM generate_series(1, 60) n \gset
SELECT count(tap.put(:ns, :c, 'o' || n, 1, id => :i + 100 + n)) AS x FROM generate_series(1, 2) n \gset
SELECT is(pg_temp.deltas(:a, :b, :c), '{3,60,2}', 'delta records of three directories');
SELECT cmp_ok(mantle.run_maintenance('compact'), '>=', 3::bigint, 'one step comes to all of them');
SELECT is(pg_temp.deltas(:a, :b, :c), '{0,0,0}', 'and folds all');
SELECT is(ARRAY(SELECT d.entries FROM unnest(ARRAY[:a, :b, :c]::bigint[]) AS p, mantle.dirstat(:ns, ARRAY[p]) AS d),
    '{3,60,2}', 'exactly');
SELECT is(mantle.run_maintenance('compact'), 0::bigint, 'the round is over');
SELECT is(ARRAY[pg_temp.is_busy(:a), pg_temp.is_busy(:b), pg_temp.is_busy(:c)], '{f,t,f}', 'one had many');

-- The next round comes at once, because there was work, and finds little.
SELECT tap.put(:ns, :b, 'q', 1, id => :i + 199) AS x \gset
SELECT pg_temp.round() AS x \gset
SELECT ok(pg_temp.is_busy(:b), 'and that is no reason to forget it');

-- Between rounds.
SELECT count(tap.put(:ns, :b, 'p' || n, 1, id => :i + 200 + n)) AS x FROM generate_series(1, 9) n \gset
SELECT tap.put(:ns, :a, 'p', 1, id => :i + 220) AS x \gset
SELECT cmp_ok(mantle.run_maintenance('compact_busy'), '>=', 1::bigint, 'there are busy ones');
SELECT is(pg_temp.deltas(:a, :b), '{1,0}', 'they are looked at between two rounds, the others are not');
SELECT mantle.run_maintenance('compact_busy') AS x \gset
SELECT ok(NOT pg_temp.is_busy(:b), 'one with no more of them is busy no longer');
SELECT pg_temp.round() AS x \gset

-- More than a batch.
INSERT INTO mantle.meta (pid, name, ts, ns, entries, subdirectories, bytes, modified)
SELECT d, '/_ATTR', 20000 + n, :ns, 0, 0, 0, now()
  FROM (VALUES (:a, current_setting('mantle.compaction_batch')::int + 5), (:c, 10)) AS v (d, rows),
      generate_series(1, rows) n;
SELECT mantle.run_maintenance('compact') AS x \gset
SELECT is(pg_temp.deltas(:a, :c), '{5,10}', 'a batch, of the first directory');
SELECT cmp_ok(pg_temp.round(), '>=', 1::bigint, 'the round goes on with it');
SELECT is(pg_temp.deltas(:a, :c), '{0,0}', 'and comes to the others');

-- Skips directories that are latched exclusively.
SELECT tap.put(:ns, :a, 'r', 1, id => :i + 500) AS x, tap.put(:ns, :b, 'r', 1, id => :i + 501) AS y \gset
SELECT dblink_exec('tap_a', 'BEGIN') AS x \gset
SELECT count(*) AS x FROM dblink('tap_a', format('SELECT mantle.latch_pids(''{}'', ARRAY[%s])::text', :a))
    AS r(t text) \gset
SELECT pg_temp.round() AS x \gset
SELECT is(pg_temp.deltas(:a, :b), '{1,0}', 'a directory that is latched exclusively waits, its neighbours do not');
SELECT dblink_exec('tap_a', 'COMMIT') AS x \gset
SELECT pg_temp.round() AS x \gset
SELECT is(pg_temp.deltas(:a, :b), '{0,0}', 'until the next round');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');
SELECT * FROM finish();
