-- Settings of a database or a role on which mutations depend. ALTER DATABASE and ALTER ROLE affect the sessions of
-- services, which cannot set anything themselves: a SET would stay in the pooler's session, and the pooler refuses
-- options at the start. So mantle.pin_settings sets them for the services' login roles in this database, with
-- precedence over all other defaults. Statements do not depend on search_path: those of services name schemas, and
-- functions set their own.

--- Settings that a session of a service depends on, if the server has them
CREATE FUNCTION mantle.pinned_settings() RETURNS TABLE (
    setting text,
    pinned  text,  -- for services
    sound   text,  -- a pattern of the values that do no harm either
    refused text,  -- of the others, a pattern of those with which mutations fail or go wrong; NULL: none
    effect  text)  -- of the others
LANGUAGE sql STABLE {as_caller} AS $$
    SELECT p.setting, p.pinned, p.sound, p.refused, p.effect
      FROM (VALUES (current_setting('synchronous_standby_names') = '',
                    '^(on|true|yes|1)$', '^(off|false|no|0)$', '^0+ *(us|ms|s|min|h|d)?$',
                    '^([1-9]\d{0,2} *(ms)?|[1-9]\d* *us)$')  -- below a second
           ) AS v(is_alone, is_on, is_off, is_none, is_short)
     CROSS JOIN LATERAL (VALUES
        ('default_transaction_isolation', 'read committed', '^read committed$', '',
         'every mutation is refused ({wrong_isolation})'),
        ('default_transaction_read_only', 'off', v.is_off, '', 'every mutation is refused (25006)'),
        ('synchronous_commit', 'on', '^(on|true|yes|1|remote_apply' || CASE WHEN v.is_alone THEN '|local|remote_write' ELSE '' END
                                     || ')$', '', 'every mutation is refused ({weak_commit})'),
        -- A warning says that the wait for a standby was cancelled (P18).
        ('client_min_messages', 'notice', CASE WHEN v.is_alone THEN '' ELSE '^(?!error$)' END, '',
         'every mutation is refused ({weak_commit})'),
        ('exit_on_error', 'off', v.is_off, '', 'each refusal ends the session, and the outcome of others is unknown'),
        ('statement_timeout', '0', '^(?!' || v.is_short || ')', '', 'mutations are cut off, with an unknown outcome'),
        ('transaction_timeout', '0', v.is_none, v.is_short,
         'what takes longer is cut off: mutations with an unknown outcome, imports, and copies of the directories to an index'),
        ('lock_timeout', '0', v.is_none, NULL, 'a mutation that waits for another is refused'),
        ('row_security', 'on', v.is_on, NULL, 'on Citus an index cannot read the directories'),
        ('standard_conforming_strings', 'on', v.is_on, NULL, 'statements are misread'),
        ('array_nulls', 'on', v.is_on, NULL, 'statements are misread'),
        ('transform_null_equals', 'off', v.is_off, NULL, 'statements are misread'),
        ('DateStyle', 'ISO, MDY', '^iso\M', NULL, 'times may be misread'),
        ('plpgsql.extra_errors', 'none', '^(none)?$', '', 'functions fail without a need'),
        ('citus.multi_task_query_log_level', 'off', '^(?!error)', '', 'what concerns several nodes fails'),
        ('citus.enable_local_execution', 'on', v.is_on, '', 'changes fail on the node that has the directory'),
        ('citus.enable_router_execution', 'on', v.is_on, '', 'changes fail'),
        -- Nothing depends on these values; others cost time, or end idle sessions.
        ('search_path', 'pg_catalog, pg_temp', '', NULL, NULL),
        ('default_transaction_deferrable', 'off', '', NULL, NULL),
        ('session_replication_role', 'origin', '', NULL, NULL),
        ('idle_in_transaction_session_timeout', '0', '', NULL, NULL),
        ('idle_session_timeout', '0', '', NULL, NULL),
        ('IntervalStyle', 'postgres', '', NULL, NULL),
        ('jit', 'off', '', NULL, NULL),
        ('citus.multi_shard_modify_mode', 'parallel', '', NULL, NULL)
     ) AS p(setting, pinned, sound, refused, effect)
     -- A setting of a library that is not loaded may remain as an empty one.
     WHERE current_setting(p.setting, true) <> ''
$$;

--- Login roles of services: members of the roles that change something
CREATE FUNCTION mantle.service_roles() RETURNS SETOF name LANGUAGE sql STABLE {as_caller} AS $$
    SELECT r.rolname FROM pg_roles r
     WHERE r.rolcanlogin AND NOT r.rolsuper
       AND EXISTS (SELECT FROM pg_roles g WHERE g.rolname IN ('mantle_gateway', 'mantle_importer', 'mantle_index')
                                            AND pg_has_role(r.oid, g.oid, 'MEMBER'))
$$;

--- gateway, index, monitor: Settings that harm the services whose login roles have them in this database, on this node; or
--- only one role's. No row: none
-- A new session gets the first of these: the setting of the role in the database, of the role, of the database, of all
-- roles, of the server. The server's is visible only if the calling session has it too.
CREATE FUNCTION mantle.setting_problems(p_role name DEFAULT NULL) RETURNS TABLE (
    role    name,
    setting text,
    value   text,
    refuses boolean,  -- mutations fail or go wrong
    problem text)
LANGUAGE sql STABLE {as_owner} AS $$
    WITH configured AS (
        SELECT DISTINCT ON (r.role, lower(split_part(c.line, '=', 1)))
               r.role, lower(split_part(c.line, '=', 1)) AS setting, substr(c.line, strpos(c.line, '=') + 1) AS value
          FROM mantle.service_roles() AS r(role)
          JOIN pg_roles o ON o.rolname = r.role
          JOIN pg_db_role_setting d ON d.setrole IN (o.oid, 0) AND d.setdatabase IN (
                   (SELECT b.oid FROM pg_database b WHERE b.datname = current_database()), 0)
         CROSS JOIN unnest(d.setconfig) AS c(line)
         ORDER BY 1, 2, d.setrole <> 0 DESC, d.setdatabase <> 0 DESC),
    effective AS (
        SELECT r.role, p.*, coalesce(c.value, CASE WHEN s.source IN ('database', 'user', 'database user', 'client', 'session')
                                                   THEN s.boot_val ELSE s.setting END, p.pinned) AS value
          FROM mantle.service_roles() AS r(role) CROSS JOIN mantle.pinned_settings() AS p
          LEFT JOIN configured c ON c.role = r.role AND c.setting = lower(p.setting)
          LEFT JOIN pg_settings s ON lower(s.name) = lower(p.setting)
         WHERE p_role IS NULL OR r.role = p_role)
    SELECT e.role, e.setting, e.value, coalesce(e.value ~* e.refused, false),
           format('role %s has %s = %L in this database: %s. SELECT mantle.pin_settings(%L)',
                  e.role, e.setting, e.value, e.effect, e.role)
      FROM effective e WHERE e.value !~* e.sound ORDER BY 1, 2
$$;

--- gateway: Whether a new session of this role accepts mutations; if so, and this session does not, ends it
-- Such a session began before a setting was changed back, or another client of its pooler left a SET in it.
CREATE FUNCTION mantle.end_stale_session() RETURNS boolean LANGUAGE plpgsql VOLATILE {as_owner} AS $$
BEGIN
    IF pg_is_in_recovery() OR EXISTS (SELECT FROM mantle.setting_problems(session_user) AS s WHERE s.refuses) THEN
        RETURN false;
    END IF;
    IF mantle.mutation_fault_code() IS NOT NULL THEN
        PERFORM pg_terminate_backend(pg_backend_pid());
    END IF;
    RETURN true;
END $$;
