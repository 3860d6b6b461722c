-- What pg_upgrade loses of a database's catalog, and the function that restores it.
\ir setup.psql
BEGIN;
SELECT plan(11);
CREATE FUNCTION pg_temp.state() RETURNS SETOF text LANGUAGE sql AS $$
    SELECT format('%s %s %s', f, p.proacl, i.initprivs)
      FROM mantle.message_functions() AS f JOIN pg_proc p ON p.oid = f
      LEFT JOIN pg_init_privs i ON i.objoid = f AND i.classoid = 'pg_proc'::regclass
    UNION ALL
    SELECT format('%s %s', d.refclassid::regclass, d.deptype) FROM pg_depend d JOIN pg_publication p ON p.oid = d.objid
     WHERE d.classid = 'pg_publication'::regclass AND p.pubname = 'mantle_stream'
$$;
SELECT is((SELECT count(*) FROM mantle.message_functions()), 2::bigint, 'text and bytes, whatever the version''s signature');
SELECT is_empty('SELECT * FROM mantle.lost_by_upgrade()', 'nothing is lost after CREATE EXTENSION');
SELECT is_empty('SELECT * FROM mantle.restore_after_upgrade()', 'and nothing is restored');
CREATE TEMPORARY TABLE made AS SELECT s FROM pg_temp.state() AS s;

-- The catalog as pg_upgrade makes it.
UPDATE pg_proc SET proacl = NULL WHERE oid IN (SELECT f FROM mantle.message_functions() AS f);
DELETE FROM pg_init_privs WHERE classoid = 'pg_proc'::regclass AND objoid IN (SELECT f FROM mantle.message_functions() AS f);
DELETE FROM pg_depend d USING pg_publication p
 WHERE d.classid = 'pg_publication'::regclass AND d.objid = p.oid AND p.pubname = 'mantle_stream';
SELECT is(jsonb_array_length(mantle.node_facts()->'lost'), 3, 'check_cluster learns of it');
SET ROLE mantle_analyst;
SELECT lives_ok($$ SELECT pg_logical_emit_message(true, 'tap', 'forged') $$, 'then anybody forges messages');
RESET ROLE;
SELECT is((SELECT count(*) FROM mantle.restore_after_upgrade()), 3::bigint, 'two functions and a publication are restored');
SELECT set_eq('SELECT s FROM pg_temp.state() AS s', 'SELECT s FROM made', 'as CREATE EXTENSION makes them');
SET ROLE mantle_analyst;
SELECT throws_ok($$ SELECT pg_logical_emit_message(true, 'tap', 'forged') $$, '42501', NULL, 'nobody forges any more');
RESET ROLE;
SELECT is_empty('SELECT * FROM mantle.restore_after_upgrade()', 'a second time there is nothing to do');
SELECT is(jsonb_array_length(mantle.node_facts()->'lost'), 0, 'and nothing to tell');

-- An administrator's grant is no loss. The gateways and check_cluster report it.
DO $$
DECLARE v_function regprocedure;
BEGIN
    FOR v_function IN SELECT f FROM mantle.message_functions() AS f LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', v_function);
    END LOOP;
END $$;
SELECT is_empty('SELECT * FROM mantle.restore_after_upgrade()', 'what an administrator grants is not taken away in silence');
SELECT * FROM finish();
ROLLBACK;
