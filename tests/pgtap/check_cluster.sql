-- The problems that check_cluster derives from a node's facts; this needs no cluster.
\ir setup.psql
BEGIN;
SELECT plan(24);
SELECT ARRAY['mantle_index_1'] AS slots \gset
-- The facts of a node without problems.
SELECT mantle.node_facts()
    || '{"version": "1", "preloaded": true, "worker": true, "wal_level": "logical", "prepared": 64, "locks": 1024,
    "commit": "on",
    "synchronous": true, "followed": true, "wal_keep": "8GB", "publication": true, "emit_is_public": false, 
    "slots": {"mantle_index_1": "reserved"},
    "roles": [1, 2, 3, 4], "hot_shards": 0}' AS sound \gset
CREATE FUNCTION pg_temp.problems(facts jsonb) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(string_agg(p.problem, ' ' ORDER BY p.problem), 'none') FROM mantle.node_problems(facts, '1',
        '{mantle_index_1}') AS p
$$;
SELECT is(pg_temp.problems(:'sound'), 'none', 'a sound node');
SELECT is((SELECT array_agg(k ORDER BY k) FROM jsonb_object_keys(:'sound'::jsonb) AS k),
    (SELECT array_agg(k ORDER BY k) FROM jsonb_object_keys(mantle.node_facts()) AS k),
          'slots are not reported where they were not asked for');
SELECT is(pg_temp.problems(:'sound'::jsonb || w.said), w.problem, w.problem || ': ' || w.said)
  FROM (VALUES ('{"version": null}'::jsonb, 'extension'), ('{"version": "0"}', 'version'),
      ('{"preloaded": false}', 'preload'), ('{"worker": false}', 'worker'),
               ('{"wal_level": "replica"}', 'wal_level'), ('{"prepared": 0}', 'max_prepared_transactions'),
                   ('{"locks": 64}', 'max_locks_per_transaction'),
               ('{"wal_keep": "-1"}', 'max_slot_wal_keep_size'), ('{"publication": false}', 'publication'),
                   ('{"emit_is_public": true}', 'privileges'),
               ('{"hot_shards": 1}', 'autovacuum'), ('{"roles": []}', 'roles'), ('{"slots": {}}', 'slot'),
                   ('{"slots": {"mantle_index_1": "lost"}}', 'slot'),
               ('{"synchronous": false}', 'synchronous_standby_names'), ('{"synchronous": false, "followed": false}',
                   'none')) AS w(said, problem);

-- check_cluster reports exactly those commit levels that the verbs refuse.
SELECT is((SELECT string_agg(l, ' ' ORDER BY n) FROM unnest('{off,local,remote_write,on,remote_apply}'::text[]) WITH
    ORDINALITY AS u(l, n)
            WHERE pg_temp.problems(:'sound'::jsonb || jsonb_build_object('commit', l)) = 'synchronous_commit'),
                'off local remote_write', 'with a synchronous standby');
SELECT is((SELECT string_agg(l, ' ' ORDER BY n) FROM unnest('{off,local,remote_write,on,remote_apply}'::text[]) WITH
    ORDINALITY AS u(l, n)
            WHERE pg_temp.problems(:'sound'::jsonb || jsonb_build_object('commit', l, 'synchronous', false, 'followed',
                false)) = 'synchronous_commit'), 'off', 'without');
CREATE FUNCTION pg_temp.refused(level text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', level, true);
    RETURN mantle.mutation_fault_code() = 'MT042';
END $$;
-- This server has no slot.
SELECT is((SELECT string_agg(l, ' ' ORDER BY n) FROM unnest('{off,local,remote_write,on,remote_apply}'::text[]) WITH
    ORDINALITY AS u(l, n) WHERE pg_temp.refused(l)),
          CASE WHEN current_setting('synchronous_standby_names') = '' THEN 'off' ELSE 'off local remote_write' END,
              'as they are refused');
-- A slot of another database does not count for this one.
SELECT ok((SELECT bool_and(c.node = 'this node') AND bool_or(c.problem = 'slot') FROM mantle.check_cluster() AS c),
    'a PostgreSQL alone');
SELECT isnt((SELECT f->>'wal_keep' FROM mantle.node_facts() AS f), NULL, 'tells how much WAL a slot may keep');
SET LOCAL synchronous_commit = off;
SELECT ok(EXISTS (SELECT FROM mantle.check_cluster() AS c WHERE c.problem = 'synchronous_commit'), 'of settings too');
SELECT * FROM finish();
ROLLBACK;
