-- Pins the settings that services depend on (../monitor/settings.sql).

--- Sets for a login role, in this database and on this node, what a service depends on; answers what was set
-- A setting of the role's own that does no harm stays, for example an importer's statement_timeout.
CREATE FUNCTION mantle.pin_settings_here(p_role name) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE {as_caller} SET citus.enable_ddl_propagation = off AS $$
DECLARE s record;
BEGIN
    FOR s IN
        SELECT p.setting, p.pinned FROM mantle.pinned_settings() AS p
         WHERE NOT EXISTS (
                   SELECT FROM pg_db_role_setting d
                    WHERE d.setrole = (SELECT r.oid FROM pg_roles r WHERE r.rolname = p_role)
                      AND d.setdatabase = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
                      AND p.setting || '=' || p.pinned = ANY (d.setconfig))
           AND NOT EXISTS (
                   SELECT FROM pg_db_role_setting d CROSS JOIN unnest(d.setconfig) AS c(line)
                    WHERE d.setrole = (SELECT r.oid FROM pg_roles r WHERE r.rolname = p_role) AND d.setdatabase = 0
                      AND lower(split_part(c.line, '=', 1)) = lower(p.setting) AND p.sound <> ''
                      AND substr(c.line, strpos(c.line, '=') + 1) ~* p.sound)
    LOOP
        -- A list has its elements quoted one by one.
        EXECUTE format('ALTER ROLE %I IN DATABASE %I SET %s = %s', p_role, current_database(), s.setting,
                       (SELECT string_agg(quote_literal(trim(e)), ', ' ORDER BY n)
                          FROM string_to_table(s.pinned, ',') WITH ORDINALITY AS u(e, n)));
        RETURN NEXT s.setting;
    END LOOP;
END $$;

--- Sets for a service's login role, in this database, what the service depends on; on Citus on every node. As a superuser.
--- A repetition changes nothing
-- Only a SET in the session has precedence over these settings. Existing sessions keep their old settings.
CREATE FUNCTION mantle.pin_settings(p_role name) RETURNS void LANGUAGE plpgsql VOLATILE {as_caller} AS $$
DECLARE
    v_is_alone boolean := true;
    v_bad text;
BEGIN
    IF EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'citus') THEN
        v_is_alone := NOT EXISTS (SELECT FROM pg_dist_node);
    END IF;
    IF v_is_alone THEN
        PERFORM FROM mantle.pin_settings_here(p_role);
        RETURN;
    END IF;
    SELECT string_agg(r.result, '; ' ORDER BY r.result) INTO v_bad
      FROM run_command_on_all_nodes(format('SELECT count(*) FROM mantle.pin_settings_here(%L)', p_role)) AS r
     WHERE NOT r.success;
    IF v_bad IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state', MESSAGE = v_bad;
    END IF;
END $$;
