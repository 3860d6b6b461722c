-- Who may read which namespace, for the policies of row-level security (sql/analysts/row_security.sql). By the role's name: its
-- number is another on every node of Citus, and after a restore. Read by extension/src/row_security.rs, as columns 1 and 2.
CREATE TABLE mantle.namespace_grants (
    role    name NOT NULL,
    ns      bigint NOT NULL,
    granted timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (role, ns)
);
SELECT pg_catalog.pg_extension_config_dump('mantle.namespace_grants', '');
COMMENT ON TABLE mantle.namespace_grants IS 'Which role may read which namespace; kept by grant_namespace and revoke_namespace';
COMMENT ON COLUMN mantle.namespace_grants.ns IS 'Namespace; 0: all, those to come included';
COMMENT ON INDEX mantle.namespace_grants_pkey IS 'What a role may read';
