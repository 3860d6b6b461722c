-- Settings of a database or a role on which mutations depend: what is found, what is pinned, what a session refuses.
\ir setup.psql
SELECT plan(24);
SELECT tap.connect('tap_stale') AS x \gset
BEGIN;
CREATE ROLE tap_service LOGIN IN ROLE mantle_gateway;
CREATE ROLE tap_other LOGIN;
SELECT format('%I', current_database()) AS here \gset
CREATE FUNCTION pg_temp.found() RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(string_agg(format('%s=%s%s', s.setting, s.value, CASE WHEN s.refuses THEN '!' ELSE '' END), ' '
                               ORDER BY s.setting), 'none')
      FROM mantle.setting_problems('tap_service') AS s
$$;
SELECT is(pg_temp.found(), 'none', 'the defaults do no harm');

-- What a new session gets.
ALTER ROLE ALL SET default_transaction_isolation = 'repeatable read';
SELECT is(pg_temp.found(), 'default_transaction_isolation=repeatable read!', 'what all roles have');
ALTER DATABASE :here SET default_transaction_isolation = 'serializable';
SELECT is(pg_temp.found(), 'default_transaction_isolation=serializable!', 'the database''s is above it');
ALTER ROLE tap_service SET default_transaction_isolation = 'repeatable read';
SELECT is(pg_temp.found(), 'default_transaction_isolation=repeatable read!', 'the role''s is above that');
ALTER ROLE tap_service IN DATABASE :here SET default_transaction_isolation = 'read committed';
SELECT is(pg_temp.found(), 'none', 'and the role''s in the database is above all');
ALTER ROLE tap_service IN DATABASE postgres SET synchronous_commit = off;
ALTER ROLE tap_other SET synchronous_commit = off;
SELECT is_empty('SELECT * FROM mantle.setting_problems() WHERE role IN (''tap_service'', ''tap_other'')',
    'another database and a role of no service do not count');

-- What does harm.
ALTER ROLE tap_service RESET ALL;
ALTER ROLE tap_service IN DATABASE :here RESET ALL;
ALTER ROLE ALL RESET ALL;
ALTER DATABASE :here RESET ALL;
CREATE FUNCTION pg_temp.if_set(setting text, value text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE v_found text;
BEGIN
    EXECUTE format('ALTER ROLE tap_service SET %s = %L', setting, value);
    v_found := pg_temp.found();
    EXECUTE format('ALTER ROLE tap_service RESET %s', setting);
    RETURN v_found;
END $$;
SELECT is(pg_temp.if_set(w.setting, w.value), w.found, w.setting || ' = ' || w.value) FROM (VALUES
    ('default_transaction_read_only', 'yes', 'default_transaction_read_only=yes!'),
    ('synchronous_commit', 'off', 'synchronous_commit=off!'),
    ('synchronous_commit', 'remote_apply', 'none'),
    ('synchronous_commit', 'local', CASE current_setting('synchronous_standby_names') WHEN '' THEN 'none'
                                         ELSE 'synchronous_commit=local!' END),
    ('statement_timeout', '1ms', 'statement_timeout=1ms!'),
    ('statement_timeout', '60min', 'none'),
    ('lock_timeout', '5s', 'lock_timeout=5s'),
    ('DateStyle', 'German', 'DateStyle=German'),
    ('search_path', 'anything', 'none')) AS w(setting, value, found);

-- What is pinned.
ALTER DATABASE :here SET default_transaction_isolation = 'serializable';
ALTER ROLE tap_service SET statement_timeout = '60min';
ALTER ROLE tap_service SET synchronous_commit = 'off';
SELECT isnt_empty('SELECT mantle.pin_settings_here(''tap_service'')', 'pinned');
SELECT is(pg_temp.found(), 'none', 'nothing is left to harm');
SELECT is_empty('SELECT mantle.pin_settings_here(''tap_service'')', 'a repetition sets nothing');
SELECT is((SELECT array_agg(lower(split_part(c, '=', 1)) ORDER BY lower(split_part(c, '=', 1)))
             FROM pg_db_role_setting d CROSS JOIN unnest(d.setconfig) AS c
            WHERE d.setrole = 'tap_service'::regrole
              AND d.setdatabase = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())),
          (SELECT array_agg(lower(p.setting) ORDER BY lower(p.setting)) FROM mantle.pinned_settings() AS p
            WHERE p.setting <> 'statement_timeout'), 'all but what the role has itself, and does no harm');
SELECT ok((SELECT 'search_path=pg_catalog, pg_temp' = ANY (d.setconfig) FROM pg_db_role_setting d
            WHERE d.setrole = 'tap_service'::regrole
              AND d.setdatabase = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())), 'a list is a list');
SELECT throws_ok('SELECT mantle.pin_settings_here(''tap_nobody'')', '42704', NULL, 'a role that does not exist');
ROLLBACK;

-- A session.
BEGIN READ ONLY;
SELECT is(mantle.mutation_fault_code(), '25006', 'a read-only transaction is asked, and answers');
ROLLBACK;
SELECT is((SELECT r.t FROM dblink('tap_stale', 'SELECT mantle.end_stale_session()::text') AS r(t text)), 'true',
    'a session that refuses nothing stays');
SELECT dblink_exec('tap_stale', 'SET default_transaction_isolation = ''serializable''') AS x \gset
SELECT throws_like($$ SELECT * FROM dblink('tap_stale', 'SELECT mantle.end_stale_session()::text') AS r(t text) $$,
    '%terminating connection due to administrator command%', 'one that refuses mutations, as no new one would, is ended');
SELECT dblink_disconnect('tap_stale') AS x \gset
SELECT * FROM finish();
