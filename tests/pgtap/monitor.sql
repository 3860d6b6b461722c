-- The views that a DBA reads with no role but mantle_monitor.
\ir setup.psql
SELECT plan(17);
SELECT tap.namespace('tap-monitor') AS ns \gset
SELECT new_id AS a FROM tap.mkdir(:ns, :ns, 'a/') \gset
SET mantle.delta_records = 'always';
SELECT count(tap.put(:ns, :a, 'o' || i)) AS x FROM generate_series(1, 3) i \gset
RESET mantle.delta_records;

SET ROLE mantle_monitor;
SELECT results_eq(format('SELECT ns, deltas, age >= interval ''0'' FROM mantle.delta_backlog WHERE pid = %s', :a),
    format('VALUES (%s::bigint, 3::bigint, true)', :ns), 'the backlog of a directory');
SELECT ok((SELECT bool_and(deltas <= first) FROM (SELECT deltas, first_value(deltas) OVER () AS first
    FROM mantle.delta_backlog) AS b), 'the hottest first');
SELECT throws_ok('SELECT * FROM mantle.meta', '42501', NULL, 'but no entries');
SELECT throws_ok('SELECT * FROM mantle.requests', '42501', NULL, 'and no request ids');
SELECT throws_ok(format('SELECT mantle.compact(%s)', :a), '42501', NULL, 'it changes nothing');
SELECT is((SELECT exists FROM mantle.index_slots WHERE index_group = 1), false,
    'no slot of another database is ours');
SELECT set_eq('SELECT backlog FROM mantle.backlogs', ARRAY['request ids', 'tombstones', 'rename attempts',
    'prune queue'], 'the backlogs');
SELECT ok((SELECT oldest <= now() AND kept = interval '1 day' FROM mantle.backlogs WHERE backlog = 'request ids'),
    'with their ages');
SELECT is((SELECT count(*) FROM mantle.operations), 0::bigint, 'operations');
RESET ROLE;

-- A slot of this database without a reader falls behind.
SELECT pg_create_logical_replication_slot('tap_monitor', 'pgoutput') AS x \gset
SELECT tap.put(:ns, :a, 'later') AS x \gset
BEGIN;
UPDATE mantle.index_groups SET slot_name = 'tap_monitor' WHERE index_group = 1;
SET LOCAL ROLE mantle_monitor;
SELECT ok((SELECT exists AND NOT active AND wal_status = 'reserved' AND lag_bytes > 0 AND retained_bytes >= lag_bytes
             FROM mantle.index_slots WHERE index_group = 1), 'a slot that is not read');
ROLLBACK;
SELECT pg_drop_replication_slot('tap_monitor') AS x \gset

-- Latches, while two sessions change one name.
SELECT tap.id() AS first, tap.id() AS second \gset
SELECT tap.connect('holder') AS x \gset
SELECT tap.connect('waiter') AS x \gset
SELECT dblink_exec('holder', 'BEGIN') AS x \gset
SELECT * FROM dblink('holder', format('SELECT code FROM tap.put(%s, %s, ''contended'', id => %s)', :ns, :a, :first))
    AS t(code text) \gset
SELECT dblink_send_query('waiter', format('SELECT code FROM tap.put(%s, %s, ''contended'', id => %s)', :ns, :a,
    :second)) AS x \gset
SELECT ok(tap.wait_for('SELECT count(*) = 1 FROM mantle.latches WHERE NOT granted'), 'a latch is waited for');
SET ROLE mantle_monitor;
SELECT results_eq('SELECT class, exclusive FROM mantle.latches WHERE NOT granted', $$ VALUES ('name', true) $$,
    'that of the name');
SELECT ok((SELECT waits_since <= clock_timestamp()
    AND blocked_by = ARRAY[(SELECT DISTINCT h.backend FROM mantle.latches h WHERE h.granted AND h.class = 'name'
    AND h.key = w.key)]
             FROM mantle.latches w WHERE NOT w.granted), 'behind whom, and since when');
SELECT is((SELECT count(*) FROM mantle.latches WHERE class = 'directory' AND key = :a AND NOT exclusive AND granted),
    2::bigint, 'both have the directory''s, shared');
RESET ROLE;
SELECT dblink_exec('holder', 'COMMIT') AS x \gset
SELECT is((SELECT code FROM dblink_get_result('waiter') AS t(code text)), NULL, 'the second overwrites then');
SELECT dblink_disconnect('holder') AS x \gset
SELECT dblink_disconnect('waiter') AS x \gset

SELECT ok((SELECT bool_and(d.description IS NOT NULL) FROM pg_depend p JOIN pg_class c ON c.oid = p.objid
    AND c.relkind IN ('v', 'r', 'S')
             JOIN pg_extension e ON e.oid = p.refobjid AND e.extname = 'mantle'
             LEFT JOIN pg_description d ON d.objoid = c.oid AND d.objsubid = 0 AND d.classoid = 'pg_class'::regclass
            WHERE p.classid = 'pg_class'::regclass AND p.deptype = 'e'),
                'each table, view and sequence says what it is');
SELECT is((SELECT string_agg(f.oid::regprocedure::text, ', ') FROM pg_depend p JOIN pg_proc f ON f.oid = p.objid
             JOIN pg_extension e ON e.oid = p.refobjid AND e.extname = 'mantle'
            WHERE p.classid = 'pg_proc'::regclass AND p.deptype = 'e' AND obj_description(f.oid, 'pg_proc') IS NULL),
                NULL, 'and each function');
SELECT * FROM finish();
