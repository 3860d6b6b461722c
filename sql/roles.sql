-- Roles are global: made if missing, never dropped with the extension. The installer of a service grants membership to
-- its login role. Only mantle_gateway may call a verb that takes a data locator, so nobody else can make a row name
-- another row's bytes. A login role in mantle_index also needs REPLICATION, because attributes are not inherited.
DO $$
DECLARE v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY[
        'mantle_gateway', 'mantle_importer', 'mantle_index', 'mantle_analyst', 'mantle_monitor'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = v_role) THEN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', v_role);
        END IF;
    END LOOP;
END $$;

REVOKE ALL ON SCHEMA mantle FROM PUBLIC;
GRANT USAGE ON SCHEMA mantle TO mantle_gateway, mantle_importer, mantle_index, mantle_analyst, mantle_monitor;

COMMENT ON SCHEMA mantle IS 'Mantle: the namespace of an object store, its verbs, and views of it';
