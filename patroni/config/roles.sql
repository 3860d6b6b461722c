-- The extension, the login roles of a stack, and their privileges. Run it as superuser in database `mantle`; a second run
-- changes nothing. Passwords are psql variables, so that they appear in no command line.
\set ON_ERROR_STOP on
\set QUIET on
SET client_min_messages = warning;
SET log_min_error_statement = panic;  -- a failing statement must not write a password into the log

CREATE EXTENSION IF NOT EXISTS mantle;
-- Data of an older version.
ALTER EXTENSION mantle UPDATE;

-- A password is set only when its role is created: a new setting would make a new salt, and PgBouncer, which stores the
-- SCRAM verifier, could not log in any more.
SELECT count(*) FILTER (WHERE rolname = 'importer') = 0 AS importer_is_new,
       count(*) FILTER (WHERE rolname = 'gateway') = 0 AS gateway_is_new, count(*) FILTER (WHERE rolname = 'index') = 0 AS index_is_new,
       count(*) FILTER (WHERE rolname = 'operator') = 0 AS operator_is_new, count(*) FILTER (WHERE rolname = 'analyst') = 0 AS analyst_is_new
  FROM pg_roles \gset
\if :gateway_is_new
CREATE ROLE gateway LOGIN PASSWORD :'gateway_password';
\endif
\if :index_is_new
CREATE ROLE index LOGIN REPLICATION PASSWORD :'index_password';
\endif
\if :operator_is_new
CREATE ROLE operator LOGIN PASSWORD :'operator_password';
\endif
\if :importer_is_new
CREATE ROLE importer LOGIN PASSWORD :'importer_password';
\endif
\if :analyst_is_new
CREATE ROLE analyst LOGIN PASSWORD :'analyst_password';
\endif

GRANT mantle_gateway TO gateway;
GRANT mantle_index TO index;
GRANT mantle_analyst TO analyst;
-- The user of this machine has two: `operator` reads as an analyst and monitors the server, `importer` loads lists of paths.
-- Neither may call a verb that takes a data locator, or answers in another principal's name.
GRANT mantle_analyst, mantle_monitor TO operator;
GRANT mantle_importer TO importer;
-- Of an older version; a REVOKE of what is not there would warn.
SELECT 'REVOKE mantle_gateway FROM operator' FROM pg_auth_members
 WHERE roleid = 'mantle_gateway'::regrole AND member = 'operator'::regrole \gexec
GRANT EXECUTE ON FUNCTION mantle.move_namespace(text, int), mantle.abort_move(text) TO operator;

-- All namespaces, including future ones. In other installations a role sees the namespaces that it was granted.
SELECT mantle.grant_namespace('*', 'analyst') IS NULL AS a, mantle.grant_namespace('*', 'operator') IS NULL AS b \gset ignored_

-- Bounds the age of an analyst's snapshot.
ALTER ROLE analyst SET statement_timeout = '10min';
ALTER ROLE operator SET statement_timeout = '60min';
ALTER ROLE importer SET statement_timeout = '60min';

-- An administrator may set defaults for the database: an isolation level, a bound on transactions (from 17 on), a
-- search_path. Mutations would fail, or a copy be cut off, so the services are exempt.
SELECT mantle.pin_settings('gateway') IS NULL AS a, mantle.pin_settings('index') IS NULL AS b,
       mantle.pin_settings('importer') IS NULL AS c \gset ignored_

-- On Citus a session of a service opens one connection to each other node, which `mantle size` counts. By default a
-- statement for several shards opens up to 16 when a node answers slowly.
SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') AS is_citus \gset
\if :is_citus
ALTER ROLE gateway SET citus.max_adaptive_executor_pool_size = 1;
ALTER ROLE index SET citus.max_adaptive_executor_pool_size = 1;
\endif

REVOKE ALL ON DATABASE mantle FROM PUBLIC;
GRANT CONNECT ON DATABASE mantle TO gateway, index, operator, importer, analyst;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
