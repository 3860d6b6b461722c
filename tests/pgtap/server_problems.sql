-- What holds a server up, or is used up, is named, with its culprit.
\ir setup.psql
SELECT plan(23);
-- Limits that nothing reaches: a year, and all connections.
CREATE FUNCTION pg_temp.told(of_kind text, transaction interval DEFAULT '1 year', prepared interval DEFAULT '1 year',
    snapshot bigint DEFAULT 2000000000, percent int DEFAULT 100, frozen bigint DEFAULT 2000000000)
RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(string_agg(p.culprit, '; ' ORDER BY p.culprit), 'nobody')
      FROM mantle.server_problems_beyond(transaction, prepared, snapshot, percent, frozen) AS p WHERE p.problem = of_kind
       AND p.culprit NOT LIKE '%in database mantle' -- another database of this server, whose worker is busy now and then
$$;
SELECT is(pg_temp.told('open_transaction') || pg_temp.told('prepared_transaction') || pg_temp.told('slot_waits'),
    'nobodynobodynobody', 'nobody is named on a quiet server');

-- Another session, with a transaction id, and then only with a snapshot.
SELECT tap.connect('opener') AS x \gset
SELECT pid AS opener FROM dblink('opener', 'SELECT pg_backend_pid()') AS t(pid int) \gset
SELECT dblink_exec('opener', 'BEGIN') AS x \gset
SELECT * FROM dblink('opener', 'SELECT pg_current_xact_id()::text') AS t(xid text) \gset
SELECT is(pg_temp.told('open_transaction', '0 s'),
    format('process %s in database %I', :opener, current_database()), 'a session that changes something');
SELECT is(pg_temp.told('open_transaction'), 'nobody', 'but not before its time');
SELECT ok(bool_and(t.has_id AND NOT t.prepared AND t.detail LIKE '%xid ' || :'xid' || '%idle in transaction%'
    || 'pg_terminate_backend(' || :opener || ')'), 'with its xid, its state and what ends it')
  FROM mantle.open_transactions() AS t WHERE t.culprit LIKE format('process %s %%', :opener);
SELECT dblink_exec('opener', 'COMMIT') AS x \gset
SELECT dblink_exec('opener', 'BEGIN ISOLATION LEVEL REPEATABLE READ') AS x \gset
SELECT * FROM dblink('opener', 'SELECT 1') AS t(x int) \gset
SELECT ok(bool_and(NOT t.has_id), 'a reader has no transaction id')
  FROM mantle.open_transactions() AS t WHERE t.culprit LIKE format('process %s %%', :opener);
SELECT pg_current_xact_id() AS x \gset
SELECT pg_current_xact_id() AS x \gset
SELECT is(pg_temp.told('open_transaction', snapshot => 0),
    format('process %s in database %I', :opener, current_database()), 'its snapshot is old by the number of transactions');
SELECT dblink_exec('opener', 'COMMIT') AS x \gset
-- PostgreSQL then says nothing of the session's transactions but their ids.
SELECT dblink_exec('opener', 'SET track_activities = off') AS x \gset
SELECT dblink_exec('opener', 'BEGIN') AS x \gset
SELECT * FROM dblink('opener', 'SELECT pg_current_xact_id()::text') AS t(xid text) \gset
SELECT ok(bool_and(t.has_id AND t.detail LIKE '%xid ' || :'xid' || '%'), 'a session without track_activities is seen too')
  FROM mantle.open_transactions() AS t WHERE t.culprit LIKE format('process %s %%', :opener);
SELECT dblink_exec('opener', 'COMMIT') AS x \gset

-- A prepared transaction, whose name is no line of its own.
SELECT dblink_exec('opener', 'BEGIN') AS x \gset
SELECT * FROM dblink('opener', 'SELECT pg_current_xact_id()::text') AS t(xid text) \gset
SELECT dblink_exec('opener', E'PREPARE TRANSACTION ''tap\nforgotten''') AS x \gset
SELECT is(pg_temp.told('prepared_transaction', prepared => '0 s'),
    format(E'prepared transaction ''tap\nforgotten'' in database %I', current_database()), 'a prepared transaction');
SELECT ok(bool_and(t.has_id AND t.prepared AND t.detail LIKE '%xid ' || :'xid' || '%ROLLBACK PREPARED%'),
    'with its xid and what ends it') FROM mantle.open_transactions() AS t WHERE t.culprit LIKE 'prepared%';
SELECT is(pg_temp.told('prepared_transaction'), 'nobody', 'but not before its time');
SELECT dblink_exec('opener', E'ROLLBACK PREPARED ''tap\nforgotten''') AS x \gset
SELECT is(pg_temp.told('prepared_transaction', prepared => '0 s'), 'nobody', 'nor afterwards');
SELECT dblink_disconnect('opener') AS x \gset

-- Connections.
SELECT is(pg_temp.told('connections', percent => 1), 'max_connections', 'connections of the server');
CREATE ROLE tap_limited LOGIN CONNECTION LIMIT 1;
BEGIN;
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 1', current_database()); END $$;
SELECT ok(pg_temp.told('connections') LIKE format('CONNECTION LIMIT of database %I', current_database()) || '%',
    'connections of a database');
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 0', current_database()); END $$;
SELECT ok(pg_temp.told('connections') LIKE format('CONNECTION LIMIT of database %I', current_database()) || '%',
    'a database that is closed');
ALTER ROLE tap_limited CONNECTION LIMIT 0;
SELECT ok(pg_temp.told('connections') NOT LIKE '%tap_limited%', 'a role of no service may be closed');
GRANT mantle_gateway TO tap_limited;
SELECT ok(pg_temp.told('connections') LIKE '%CONNECTION LIMIT of role tap_limited%', 'a service''s may not');
SELECT is(pg_temp.told('login'), 'nobody', 'it may log in');
ALTER ROLE tap_limited VALID UNTIL '2020-01-01';
SELECT is(pg_temp.told('login'), 'role tap_limited', 'but its password has expired');
ROLLBACK;
SELECT ok(pg_temp.told('wraparound', frozen => 0) LIKE '%database %', 'databases with old rows');
SELECT is(pg_temp.told('connections'), 'nobody', 'nobody uses up the role''s');
DROP ROLE tap_limited;

-- The roles that are told, with the limits of the settings.
SET ROLE mantle_gateway;
SELECT lives_ok('SELECT * FROM mantle.server_problems()', 'a gateway may ask');
RESET ROLE;
SET ROLE mantle_index;
SELECT lives_ok('SELECT * FROM mantle.open_transactions()', 'the index may ask whom it waits for');
RESET ROLE;
SET ROLE mantle_analyst;
SELECT throws_ok('SELECT * FROM mantle.server_problems()', '42501', NULL, 'an analyst may not');
RESET ROLE;
SELECT * FROM finish();
