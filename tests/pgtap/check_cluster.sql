-- The problems that check_cluster derives from a node's facts; this needs no cluster.
\ir setup.psql
BEGIN;
SELECT plan(58);
SELECT ARRAY['mantle_index_1'] AS slots \gset
-- The facts of a node without problems.
SELECT mantle.node_facts()
    || '{"version": "1", "worker": [], "server": [], "wal_level": "logical", "prepared": 64, "locks": 1024, "commit": "on",
    "synchronous": true, "followed": true, "standby": true, "managed": true, "primary": true, "wal_keep": "8GB",
    "publication": true, "emit_is_public": false, "lost": [], "slots": {"mantle_index_1": "reserved"}, "unread_slots": [],
    "other_slots": {"mantle_index_2": "other"}, "blind_owner": null, "settings": [], "index_replicas": [],
    "roles": [1, 2, 3, 4, 5], "hot_shards": 0, "fsync": "on", "full_pages": "on"}' AS sound \gset
CREATE FUNCTION pg_temp.problems(facts jsonb) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(string_agg(p.problem, ' ' ORDER BY p.problem), 'none') FROM mantle.node_problems(facts, '1',
        '{mantle_index_1}') AS p
$$;
SELECT is(pg_temp.problems(:'sound'), 'none', 'a sound node');
SAVEPOINT tables;
SELECT is(mantle.node_facts()->'unsafe_tables', '[]', 'all tables are logged');
ALTER TABLE mantle.purged_requests SET UNLOGGED;
SELECT is(mantle.node_facts()->'unsafe_tables', '["purged_requests"]', 'one is not');
ROLLBACK TO tables;
SELECT is((SELECT array_agg(k ORDER BY k) FROM jsonb_object_keys(:'sound'::jsonb) AS k),
    (SELECT array_agg(k ORDER BY k) FROM jsonb_object_keys(mantle.node_facts()) AS k),
          'slots are not reported where they were not asked for');
SELECT is(pg_temp.problems(:'sound'::jsonb || w.said), w.problem, w.problem || ': ' || w.said)
  FROM (VALUES ('{"version": null}'::jsonb, 'extension'), ('{"version": "0"}', 'version'),
      ('{"worker": ["none runs", "a step fails"]}', 'worker worker'),
      ('{"server": [{"problem": "slots", "culprit": "max_replication_slots", "detail": "all are in use"}]}', 'slots'),
               ('{"fsync": "off"}', 'fsync'), ('{"full_pages": "off"}', 'full_page_writes'),
                   ('{"unsafe_tables": ["meta"]}', 'tables'),
               ('{"wal_level": "replica"}', 'wal_level'), ('{"prepared": 0}', 'max_prepared_transactions'),
                   ('{"locks": 64}', 'max_locks_per_transaction'),
               ('{"wal_keep": "-1"}', 'max_slot_wal_keep_size'), ('{"publication": false}', 'publication'),
                   ('{"emit_is_public": true}', 'privileges'),
               ('{"blind_owner": "somebody"}', 'owner'), ('{"lost": ["mantle_stream"]}', 'pg_upgrade'),
               ('{"hot_shards": 1}', 'autovacuum'), ('{"roles": []}', 'roles'), ('{"slots": {}}', 'slot'),
                   ('{"slots": {"mantle_index_1": "lost"}}', 'slot'),
               ('{"index_replicas": ["one"]}', 'index_replica'), ('{"settings": ["role a has b"]}', 'settings'),
                   ('{"slots": {"mantle_index_1": "unreserved"}}', 'slot'),
                   ('{"slots": {}, "other_slots": {"mantle_index_1": "other"}}', 'slot'),
                   ('{"unread_slots": ["mantle_index_1"]}', 'slot'), ('{"unread_slots": ["another"]}', 'none'),
               ('{"synchronous": false}', 'synchronous_standby_names'),
               ('{"standby": false}', 'standby'), ('{"standby": false, "primary": false}', 'none'),
               ('{"synchronous": false, "followed": false, "standby": false}', 'standby'),
               ('{"synchronous": false, "followed": false, "standby": false, "managed": false}', 'none'))
                   AS w(said, problem);

-- Whose slot it is, if it is not this database's.
SELECT matches((SELECT p.detail FROM mantle.node_problems(:'sound'::jsonb || jsonb_build_object('slots', '{}'::jsonb,
    'other_slots', jsonb_build_object('mantle_index_1', w.said)), '1', '{mantle_index_1}') AS p), w.told, w.told)
  FROM (VALUES ('other', '^mantle_index_1 belongs to database other: '), ('', '^mantle_index_1 belongs to a standby: '))
                   AS w(said, told);

-- check_cluster reports exactly those commit levels that the verbs refuse.
SELECT is((SELECT string_agg(l, ' ' ORDER BY n) FROM unnest('{off,local,remote_write,on,remote_apply}'::text[]) WITH
    ORDINALITY AS u(l, n)
            WHERE pg_temp.problems(:'sound'::jsonb || jsonb_build_object('commit', l)) = 'synchronous_commit'),
                'off local remote_write', 'with a synchronous standby');
SELECT is((SELECT string_agg(l, ' ' ORDER BY n) FROM unnest('{off,local,remote_write,on,remote_apply}'::text[]) WITH
    ORDINALITY AS u(l, n)
            WHERE pg_temp.problems(:'sound'::jsonb || jsonb_build_object('commit', l, 'synchronous', false, 'followed',
                false, 'managed', false)) = 'synchronous_commit'), 'off', 'without');
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

-- What a leader reports of its replicas.
CREATE FUNCTION pg_temp.reported() RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(string_agg(c.detail, '; ' ORDER BY c.detail), 'nothing') FROM mantle.check_cluster() AS c
     WHERE c.problem = 'index_replica'
$$;
SELECT is(pg_temp.reported(), 'nothing', 'no report, no row');
SELECT '[{"node_id": "2", "address": "10.0.0.2:7410", "problem": "not ready"},
    {"node_id": "3", "address": "10.0.0.3:7410", "problem": "it''s behind"}]' AS two \gset
SET LOCAL ROLE mantle_index;
SELECT lives_ok(format('SELECT mantle.report_index_replicas(1, %L)', :'two'), 'the index may report');
RESET ROLE;
SELECT is(pg_temp.reported(), 'index group 1, replica 2 at 10.0.0.2:7410: not ready; '
    'index group 1, replica 3 at 10.0.0.3:7410: it''s behind', 'a row for each replica');
UPDATE mantle.index_replica_reports SET since = 'epoch';
SELECT lives_ok(format('SELECT mantle.report_index_replicas(1, %L::jsonb - 0)', :'two'), 'one is well again');
SELECT results_eq('SELECT node_id, since FROM mantle.index_replica_reports', $$ VALUES ('3', 'epoch'::timestamptz) $$,
    'the other is as it was');
SELECT lives_ok('SELECT mantle.report_index_replicas(1, ''[]'')', 'all are well');
SELECT is(pg_temp.reported(), 'nothing', 'and no row is left');
SELECT throws_ok(format('SELECT mantle.report_index_replicas(%s, %L)', w.index_group, w.said), 'MT006', NULL, w.said)
  FROM (VALUES (1, '{}'), (1, '[1]'), (1, '[{"node_id": "2", "address": "10.0.0.2:7410"}]'), (1, NULL),
      (99, '[]')) AS w(index_group, said);

-- Namespaces that everybody may look into: those whose roots others may search.
SELECT count(n.code) AS x FROM (VALUES ('tap-open-a', 493), ('tap-open-b', 448), ('tap-open-c', 492), ('tap-open-d', 449)) AS
    w(name, mode) CROSS JOIN LATERAL mantle.create_namespace(0, w.name, tap.id(), 7, 8, w.mode, gen_random_uuid(), 0) AS n \gset
SELECT is((SELECT string_agg(split_part(c.detail, ':', 1), ' ' ORDER BY c.detail) FROM mantle.check_cluster() AS c
            WHERE c.problem = 'open_namespace' AND c.detail LIKE 'tap-open%'), 'tap-open-a tap-open-d', 'open namespaces');

SET LOCAL synchronous_commit = off;
SELECT ok(EXISTS (SELECT FROM mantle.check_cluster() AS c WHERE c.problem = 'synchronous_commit'), 'of settings too');
-- A report that says nothing new writes nothing.
SELECT tap.connect('leader') AS x \gset
CREATE FUNCTION pg_temp.has_written(report text) RETURNS text LANGUAGE sql AS $$
    SELECT dblink_exec('leader', 'BEGIN');
    SELECT r.x FROM dblink('leader', format('SELECT mantle.report_index_replicas(1, %L)::text', report)) AS r(x text);
    SELECT r.x FROM dblink('leader', 'SELECT pg_current_xact_id_if_assigned() IS NOT NULL') AS r(x text);
$$;
SELECT is(pg_temp.has_written(:'two'), 't', 'what is new is written');
SELECT dblink_exec('leader', 'COMMIT') AS x \gset
SELECT is(pg_temp.has_written(:'two'), 'f', 'what is known takes not even a transaction id');
SELECT dblink_exec('leader', 'COMMIT') AS x \gset
SELECT is(pg_temp.has_written('[]'), 't', 'the end is written');
SELECT dblink_exec('leader', 'COMMIT') AS x \gset
SELECT dblink_disconnect('leader') AS x \gset
SELECT * FROM finish();
ROLLBACK;
