-- Login roles of a stack, the extension, and what each role may do. Run as superuser in database `mantle`; running it
-- again changes nothing but the passwords. Passwords arrive as psql variables, so that they stand in no command line.
\set ON_ERROR_STOP on
\set QUIET on
SET client_min_messages = warning;
SET log_min_error_statement = panic;  -- a failing statement must not write a password into the log

CREATE EXTENSION IF NOT EXISTS mantle;

-- The publication is empty: the stream carries messages only. It must exist before the slot.
SELECT 'CREATE PUBLICATION mantle_stream' WHERE NOT EXISTS (SELECT FROM pg_publication WHERE pubname = 'mantle_stream') \gexec

SELECT format('CREATE ROLE %I LOGIN', name)
FROM unnest(ARRAY['gateway', 'index', 'operator', 'analyst']) AS name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec

ALTER ROLE gateway PASSWORD :'gateway_password';
ALTER ROLE index PASSWORD :'index_password' REPLICATION;
ALTER ROLE operator PASSWORD :'operator_password';
ALTER ROLE analyst PASSWORD :'analyst_password';

GRANT mantle_gateway TO gateway;
GRANT mantle_index TO index;
GRANT mantle_analyst TO analyst;
-- The person at this machine: reads as an analyst, imports as a gateway.
GRANT mantle_gateway, mantle_analyst TO operator;

-- A bound on the age of an analyst's snapshot.
ALTER ROLE analyst SET statement_timeout = '10min';
ALTER ROLE operator SET statement_timeout = '60min';

REVOKE ALL ON DATABASE mantle FROM PUBLIC;
GRANT CONNECT ON DATABASE mantle TO gateway, index, operator, analyst;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
