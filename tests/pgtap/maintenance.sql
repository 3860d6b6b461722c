-- Compaction is exact, pruning waits and goes bottom-up, old rows are purged. This test calls the steps itself; in
-- worker.sql the worker calls them.
\ir setup.psql
BEGIN;
SELECT plan(25);
DELETE FROM mantle.prune_queue;
SELECT tap.namespace('tap-maintenance') AS ns \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/', false) \gset
SELECT new_id AS b FROM tap.mkdir(:ns, :a, 'b/', false) \gset
-- A change appends a delta where there is no primary record: every put here, one transaction.
SELECT count(tap.put(:ns, :b, 'o' || i, i)) AS x FROM generate_series(1, 20) i \gset
SELECT is((SELECT count(*) FROM tap.meta() WHERE pid = :b AND ts > 0), 20::bigint, 'twenty deltas');
SELECT is((SELECT deltas FROM mantle.compaction_backlog WHERE pid = :b), 20::bigint, 'are the backlog');
SELECT results_eq(format('SELECT entries, subdirectories, bytes FROM mantle.dirstat(%s, ARRAY[%s])', :ns, :b),
    'VALUES (20::bigint, 0::bigint, 210::bigint)', 'counted before');
SELECT is(mantle.compact_directory(:b, 7), 7::bigint, 'a batch');
SELECT results_eq(format('SELECT entries, subdirectories, bytes FROM mantle.dirstat(%s, ARRAY[%s])', :ns, :b),
    'VALUES (20::bigint, 0::bigint, 210::bigint)', 'counted within');
SELECT is(mantle.compact(:b), 13::bigint, 'the rest');
SELECT is(mantle.compact(:b), 0::bigint, 'nothing left');
SELECT results_eq(format('SELECT entries, subdirectories, bytes FROM mantle.dirstat(%s, ARRAY[%s])', :ns, :b),
    'VALUES (20::bigint, 0::bigint, 210::bigint)', 'counted after');
SELECT tap.put(:ns, :b, 'p', 5) AS x \gset
SELECT is((SELECT count(*) FROM tap.meta() WHERE pid = :b AND ts > 0), 0::bigint,
    'a free primary record is changed in place');
SELECT is((SELECT bytes FROM mantle.dirstat(:ns, ARRAY[:b])), 215::bigint, 'exactly');

-- Compaction skips tombstones.
SELECT new_id AS t FROM tap.mkdir(:ns, :ns, 't/') \gset
SELECT tap.put(:ns, :t, 'x') AS x \gset
SELECT tap.delete(:ns, :t, 'x') AS x \gset
SELECT tap.rmdir(:ns, :ns, 't/', :t) AS x \gset
SELECT is(mantle.compact(:t), 0::bigint, 'rmdir took the deltas along');
SELECT is((SELECT code FROM mantle.dirstat(:ns, ARRAY[:t])), 'MT018', 'the tombstone stays');

-- Pruning.
CREATE FUNCTION pg_temp.drain(step text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE n bigint := 0;
BEGIN
    WHILE mantle.run_maintenance(step) > 0 LOOP n := n + 1; END LOOP;
    RETURN n;
END $$;
SELECT count(tap.delete(:ns, :b, 'o' || i)) AS x FROM generate_series(1, 20) i \gset
SELECT is(pg_temp.drain('prune'), 0::bigint, 'nothing before the grace period is over');
UPDATE mantle.prune_queue SET queued = now() - interval '1 day';
SELECT cmp_ok(pg_temp.drain('prune'), '>', 0::bigint, 'looked at');
SELECT ok(EXISTS (SELECT FROM tap.meta() WHERE id = :b AND explicit IS NOT NULL), 'a directory with an entry stays');
SELECT tap.delete(:ns, :b, 'p') AS x \gset
UPDATE mantle.prune_queue SET queued = now() - interval '1 day';
SELECT pg_temp.drain('prune') AS x \gset
SELECT ok(NOT EXISTS (SELECT FROM tap.meta() WHERE id = :b AND explicit IS NOT NULL), 'an empty implicit one goes');
SELECT is((SELECT count(*) FROM tap.meta() WHERE pid = :b AND removed), 1::bigint, 'with a tombstone');
UPDATE mantle.prune_queue SET queued = now() - interval '1 day';
SELECT pg_temp.drain('prune') AS x \gset
SELECT ok(NOT EXISTS (SELECT FROM tap.meta() WHERE id = :a AND explicit IS NOT NULL), 'then its parent');
SELECT ok(EXISTS (SELECT FROM tap.meta() WHERE id = :ns AND pid = 0), 'but not the root');
SELECT new_id AS e FROM tap.mkdir(:ns, :ns, 'e/') \gset
INSERT INTO mantle.prune_queue (pid, seq, id, queued) VALUES (:e, -1, :e, now() - interval '1 day');
SELECT pg_temp.drain('prune') AS x \gset
SELECT ok(EXISTS (SELECT FROM tap.meta() WHERE id = :e AND explicit IS NOT NULL), 'an explicit one stays');
SELECT is_empty(format('SELECT * FROM tap.damage(%s)', :ns), 'no damage');

-- Purging.
INSERT INTO mantle.requests (pid, ns, principal, request_id, request_hash, verb, created)
VALUES (:ns, :ns, 5, gen_random_uuid(), 0, 'old', now() - interval '2 days'), (:ns, :ns, 5, gen_random_uuid(), 0,
    'new', now());
UPDATE mantle.meta SET created = now() - interval '2 days' WHERE pid = :t AND removed;
SELECT mantle.abort_rename(5, :ns, gen_random_uuid(), 1) AS x \gset
UPDATE mantle.rename_attempts SET created = now() - interval '2 days' WHERE ns = :ns;
SELECT ok(pg_temp.drain('purge_requests') + pg_temp.drain('purge_tombstones') + pg_temp.drain('purge_attempts') >= 3,
    'purged');
SELECT set_eq(format('SELECT verb FROM tap.requests() WHERE ns = %s AND verb IN (''old'', ''new'')', :ns),
    ARRAY['new'], 'old requests are gone, new ones are not');
SELECT results_eq(format('SELECT pid FROM tap.meta() WHERE pid IN (%s, %s) AND removed', :t, :a),
    format('VALUES (%s::bigint)', :a), 'old tombstones too');
SELECT is((SELECT count(*) FROM tap.rename_attempts() WHERE ns = :ns), 0::bigint, 'and old attempts');
SELECT * FROM finish();
ROLLBACK;
