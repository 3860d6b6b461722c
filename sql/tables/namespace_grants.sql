--- Which role may read which namespace; grant_namespace and revoke_namespace write it
-- For the row-level security policies (sql/analysts/row_security.sql). Roles are stored by name, because a role's oid
-- differs on every node of Citus and after a restore.
-- extension/src/row_security.rs reads columns 1 and 2 by position.
CREATE TABLE mantle.namespace_grants (
    role    name NOT NULL,
    --- Namespace; 0 means all, including future ones
    ns      bigint NOT NULL,
    granted timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (role, ns)
);
SELECT pg_catalog.pg_extension_config_dump('mantle.namespace_grants', '');
COMMENT ON INDEX mantle.namespace_grants_pkey IS 'What a role may read';
