-- Login roles of a stack, the extension, and what each role may do. Run as superuser in database `mantle`; running it
-- again changes nothing. Passwords arrive as psql variables, so that they stand in no command line.
\set ON_ERROR_STOP on
\set QUIET on
SET client_min_messages = warning;
SET log_min_error_statement = panic;  -- a failing statement must not write a password into the log

CREATE EXTENSION IF NOT EXISTS mantle;
-- Data of an older version.
ALTER EXTENSION mantle UPDATE;

-- Passwords are set when a role is made, and never again: each setting makes a new salt, and PgBouncer, which holds the
-- SCRAM verifier, could then not log in any more.
SELECT count(*) FILTER (WHERE rolname = 'gateway') = 0 AS gateway_is_new, count(*) FILTER (WHERE rolname = 'index') = 0 AS index_is_new,
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
\if :analyst_is_new
CREATE ROLE analyst LOGIN PASSWORD :'analyst_password';
\endif

GRANT mantle_gateway TO gateway;
GRANT mantle_index TO index;
GRANT mantle_analyst TO analyst;
-- The person at this machine: reads as an analyst, imports as a gateway, looks after the server.
GRANT mantle_gateway, mantle_analyst, mantle_monitor TO operator;
GRANT EXECUTE ON FUNCTION mantle.move_namespace(text, int), mantle.abort_move(text) TO operator;

-- Of which namespaces: all, those to come included. Elsewhere, a role sees those that are granted to it one by one.
SELECT mantle.grant_namespace('*', 'analyst') IS NULL AS a, mantle.grant_namespace('*', 'operator') IS NULL AS b \gset ignored_

-- A bound on the age of an analyst's snapshot.
ALTER ROLE analyst SET statement_timeout = '10min';
ALTER ROLE operator SET statement_timeout = '60min';

REVOKE ALL ON DATABASE mantle FROM PUBLIC;
GRANT CONNECT ON DATABASE mantle TO gateway, index, operator, analyst;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
