-- An analyst sees the granted namespaces; each statement checks anew.
\ir setup.psql
SELECT plan(45);
SELECT tap.namespace('tap-rls-a') AS a \gset
SELECT tap.namespace('tap-rls-b') AS b \gset
SELECT tap.put(:a, :a, 'o', 1) AS x \gset
SELECT tap.put(:b, :b, 'o', 2) AS x \gset
SELECT new_id AS d FROM tap.mkdir(:b, :b, 'd/') \gset
-- Roles belong to the whole server: an interrupted run may have left these.
DROP ROLE IF EXISTS tap_reader, tap_team;
CREATE ROLE tap_reader IN ROLE mantle_analyst;
CREATE ROLE tap_team;
-- The namespaces of this test that a role sees: as rows of the MetaTable, and as names.
CREATE FUNCTION tap.sees() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(string_agg(DISTINCT n.name, ' ' ORDER BY n.name), '')
      FROM mantle.namespaces n JOIN mantle.meta m USING (ns) WHERE n.name LIKE 'tap-rls-%'
$$;
CREATE FUNCTION tap.foreign_rows(of_ns bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE
    AS $$ BEGIN RETURN (SELECT count(*) FROM mantle.meta m WHERE m.ns <> of_ns); END $$;
GRANT USAGE ON SCHEMA tap TO tap_reader;

SELECT is(tap.sees(), 'tap-rls-a tap-rls-b', 'the superuser sees all');
SET ROLE tap_reader;
SELECT is(tap.sees(), '', 'without a grant: nothing');
SELECT is((SELECT count(*) FROM mantle.meta), 0::bigint, 'of no namespace');
SELECT is((SELECT count(*) FROM mantle.namespaces), 0::bigint, 'sees no name');
SELECT is_empty($$ SELECT * FROM mantle.ls('tap-rls-a', '') $$, 'sees nothing through a function');
SELECT throws_ok('SELECT * FROM mantle.namespace_grants', '42501', NULL, 'does not read the grants');
SELECT throws_ok($$ SELECT mantle.grant_namespace('*', 'tap_reader') $$, '42501', NULL, 'an analyst cannot grant');
SELECT throws_ok($$ SELECT mantle.revoke_namespace('*', 'tap_reader') $$, '42501', NULL, 'an analyst cannot revoke');
RESET ROLE;

-- Grants.
SELECT throws_ok($$ SELECT mantle.grant_namespace('tap-rls-none', 'tap_reader') $$, 'MT011', NULL, 'no such namespace');
SELECT throws_ok($$ SELECT mantle.grant_namespace('tap-rls-a', 'tap_nobody') $$, '42704', NULL, 'no such role');
SELECT lives_ok($$ SELECT mantle.grant_namespace('tap-rls-a', 'tap_reader'), mantle.grant_namespace('tap-rls-a',
    'tap_reader') $$, 'granted; twice is once');
SET ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a', 'sees the granted namespace');
SELECT is(tap.foreign_rows(:a), 0::bigint, 'and not a row besides');
SELECT is_empty(format('SELECT FROM mantle.meta WHERE pid = %s OR id = %s OR name = ''d/'' OR pid = 0
    AND name = ''tap-rls-b/'' OR pid = 0 AND name = ''/_ATTR''', :b, :b), 'also not by number or name');
SELECT is((SELECT objects FROM mantle.du('tap-rls-a', '')), 1::bigint, 'functions see it');
SELECT ok((SELECT d IS NULL FROM (SELECT objects AS d FROM mantle.du('tap-rls-b', '')) AS d), 'and nothing of others');
SELECT is(mantle.path_of('tap-rls-b', :d), NULL, 'no path of another''s id');
SELECT set_eq('SELECT DISTINCT namespace FROM mantle.size_histogram', ARRAY['tap-rls-a'], 'views see the same');
SELECT is_empty('SELECT * FROM mantle.check()', 'check() is content with a part');
RESET ROLE;
-- A user's own function that leaks its arguments sees no hidden row: the policy is checked first.
CREATE FUNCTION tap.leaks(name text) RETURNS boolean LANGUAGE plpgsql COST 0.0001
    AS $$ BEGIN PERFORM set_config('tap.leaked', current_setting('tap.leaked') || name, false); RETURN true; END $$;
SET tap.leaked = '';
SET ROLE tap_reader;
SELECT count(*) AS x FROM mantle.meta WHERE tap.leaks(name) \gset
SELECT ok(current_setting('tap.leaked') LIKE '%o%' AND current_setting('tap.leaked') NOT LIKE '%d/%',
    'a cheap predicate does not come before the policy');
RESET ROLE;

-- Membership.
SELECT mantle.grant_namespace('tap-rls-b', 'tap_team') AS x \gset
SET ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a', 'another role''s grant');
RESET ROLE;
GRANT tap_team TO tap_reader;
SET ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a tap-rls-b', 'as a member of that role');
RESET ROLE;
REVOKE tap_team FROM tap_reader;
SET ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a', 'no member any more');
RESET ROLE;

-- A grant on all namespaces.
SELECT mantle.grant_namespace('*', 'tap_reader') AS x \gset
SELECT tap.namespace('tap-rls-c') AS c \gset
SET ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a tap-rls-b tap-rls-c', 'all, also those that came later');
SELECT ok(mantle.may_read(0) AND EXISTS (SELECT FROM mantle.meta WHERE pid = 0 AND name = '/_ATTR'),
    'the super-root''s counts too');
RESET ROLE;
SELECT mantle.revoke_namespace('tap-rls-b', 'tap_reader') AS x \gset
SET ROLE tap_reader;
SELECT ok(mantle.may_read(:b), 'all is taken back as all only');
RESET ROLE;
SELECT mantle.revoke_namespace('*', 'tap_reader') AS x \gset
SET ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a', 'sees the remaining namespace');
RESET ROLE;

-- Cached grants are never older than the statement's snapshot. In one transaction, step by step:
BEGIN;
SET LOCAL ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a', 'in a transaction');
RESET ROLE;
SELECT mantle.grant_namespace('tap-rls-b', 'tap_reader') AS x \gset
SET LOCAL ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a tap-rls-b', 'its own grant');
RESET ROLE;
SET LOCAL ROLE mantle_analyst;
SELECT ok(NOT mantle.may_read(:a), 'another role, the same snapshot');
RESET ROLE;
SAVEPOINT s;
SELECT mantle.revoke_namespace('tap-rls-a', 'tap_reader') AS x \gset
SET LOCAL ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-b', 'a revocation in a subtransaction');
ROLLBACK TO s;
SET LOCAL ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a tap-rls-b', 'rolled back');
ROLLBACK;
SET ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a', 'and the whole');
RESET ROLE;

-- Another session grants and revokes. The next statement sees it; under REPEATABLE READ, the next transaction.
SELECT tap.connect('granter') AS x \gset
SET ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a', 'before');
RESET ROLE;
SELECT count(*) AS x FROM dblink('granter', $$ SELECT mantle.grant_namespace('tap-rls-b', 'tap_reader')::text $$)
    AS t(r text) \gset
SET ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a tap-rls-b', 'after another session''s grant');
RESET ROLE;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a tap-rls-b', 'a snapshot');
RESET ROLE;
SELECT count(*) AS x FROM dblink('granter', $$ SELECT mantle.revoke_namespace('tap-rls-b', 'tap_reader')::text $$)
    AS t(r text) \gset
SET LOCAL ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a tap-rls-b', 'shows the grants of its time, too');
COMMIT;
SET ROLE tap_reader;
SELECT is(tap.sees(), 'tap-rls-a', 'and ends with its transaction');
RESET ROLE;
SELECT dblink_disconnect('granter') AS x \gset

-- A statement prepared under one role and run under another.
PREPARE seen AS SELECT count(DISTINCT ns) FROM mantle.namespaces WHERE name LIKE 'tap-rls-%';
SELECT results_eq('seen', 'VALUES (3::bigint)', 'prepared as superuser');
SET ROLE tap_reader;
SELECT results_eq('EXECUTE seen', 'VALUES (1::bigint)', 'run as an analyst');
RESET ROLE;

-- Other roles.
SET ROLE mantle_index;
SELECT ok((SELECT count(DISTINCT ns) >= 3 FROM mantle.directories), 'the index sees all directories');
RESET ROLE;
SET ROLE mantle_gateway;
SELECT is((SELECT objects FROM mantle.usage(:b, :b, 0)), 1::bigint, 'the gateway has its own du');
SELECT is((SELECT count(*) FROM mantle.list(:b, :b, NULL, NULL, 10)), 2::bigint, 'and reads every namespace');
RESET ROLE;

-- A namespace's grants are deleted with it.
SELECT mantle.grant_namespace('tap-rls-c', 'tap_reader') AS x \gset
SELECT code AS x FROM mantle.delete_namespace(0, 'tap-rls-c', gen_random_uuid(), 0) \gset
SELECT is_empty(format('SELECT FROM mantle.namespace_grants WHERE ns = %s', :c), 'a namespace''s grants go with it');
SELECT set_eq($$ SELECT p.oid::regprocedure::text FROM pg_proc p
                  WHERE p.pronamespace = 'mantle'::regnamespace AND p.prosecdef
                      AND has_function_privilege('tap_reader', p.oid, 'EXECUTE') $$, '{}'::text[],
                      'an analyst executes nothing that runs as the owner');
DELETE FROM mantle.namespace_grants WHERE role LIKE 'tap\_%';
DROP OWNED BY tap_reader;
DROP ROLE tap_reader, tap_team;
SELECT * FROM finish();
