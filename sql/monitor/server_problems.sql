-- What delays this server, or soon will: transactions and snapshots that stay open, resources that are used up, and
-- certificates that expire. An open transaction anywhere on the server, also a forgotten PREPARE TRANSACTION in another
-- database, prevents the creation of every logical slot. An old snapshot prevents vacuum from removing rows, so hot rows
-- become slow. Statements of others are not shown, because they may contain secrets.

--- index: Transactions that are open anywhere on this server: who, since when (NULL: unknown), whether with a transaction
--- id, and how old the snapshot is, in transactions
-- SECURITY DEFINER, because pg_stat_activity shows other roles' transactions only to members of pg_read_all_stats.
CREATE FUNCTION mantle.open_transactions()
RETURNS TABLE (culprit text, detail text, since timestamptz, prepared boolean, has_id boolean, snapshot_age bigint)
LANGUAGE plpgsql VOLATILE {as_owner} AS $$
BEGIN
    RETURN QUERY
    SELECT format('prepared transaction %L in database %I', x.gid, x.database),
           format('of role %s, xid %s, prepared %s s ago. Commit it or roll it back there: ROLLBACK PREPARED %L',
                  x.owner, x.transaction, extract(epoch FROM clock_timestamp() - x.prepared)::bigint, x.gid),
           x.prepared, true, true, age(x.transaction)::bigint
      FROM pg_prepared_xacts x;
    -- A vacuum's snapshot delays nobody, and mantle.worker_problems reports our worker's. A walsender's snapshot without a
    -- transaction's start is a standby's, which pg_stat_replication shows. With track_activities off there is no start either.
    RETURN QUERY
    SELECT 'process ' || a.pid || coalesce(' in database ' || quote_ident(a.datname), ''),
           format('%s of role %s, application %s, xid %s, %s, transaction open for %s. End it: SELECT pg_terminate_backend(%s)',
                  a.backend_type, coalesce(a.usename, '-'), quote_literal(a.application_name),
                  coalesce(a.backend_xid::text, 'none'), coalesce(a.state, 'at work'),
                  coalesce(extract(epoch FROM clock_timestamp() - s.since)::bigint || ' s', 'an unknown time'), a.pid),
           s.since, false, a.backend_xid IS NOT NULL, age(a.backend_xmin)::bigint
      FROM pg_stat_activity a
     -- Some background workers start no statements, such as Citus' maintenance daemon. PostgreSQL says of each of their
     -- transactions that it began with the process.
     CROSS JOIN LATERAL (
               SELECT CASE WHEN a.backend_type = 'client backend' OR a.xact_start > a.backend_start + interval '1 second'
                           THEN a.xact_start END AS since) AS s
     WHERE (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL)
       AND (a.xact_start IS NOT NULL OR a.backend_type <> 'walsender') AND a.backend_type NOT IN ('autovacuum worker', 'mantle worker') AND a.pid <> pg_backend_pid();
END $$;

--- The transaction that a walsender waits for, before the server can make a slot
CREATE FUNCTION mantle.slot_problems() RETURNS TABLE (problem text, culprit text, detail text)
LANGUAGE plpgsql VOLATILE {as_caller} AS $$
BEGIN
    -- pg_locks may have many rows, so it is read only if a walsender waits.
    IF NOT EXISTS (SELECT FROM pg_stat_activity a
                    WHERE a.backend_type = 'walsender' AND a.wait_event_type = 'Lock') THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT 'slot_waits',
           coalesce('prepared transaction ' || quote_literal(x.gid) || ' in database ' || quote_ident(x.database),
                    'process ' || h.pid || coalesce(' in database ' || quote_ident(b.datname), ''), 'nobody who is known'),
           format('a slot is being made, and has waited %s s for transaction %s of role %s, application %s, %s',
                  extract(epoch FROM clock_timestamp() - w.waitstart)::bigint, w.transactionid,
                  coalesce(x.owner, b.usename, '-'), coalesce(quote_literal(b.application_name), '-'),
                  coalesce(b.state, 'prepared'))
      FROM pg_locks w JOIN pg_stat_activity a ON a.pid = w.pid AND a.backend_type = 'walsender'
      LEFT JOIN pg_prepared_xacts x ON x.transaction = w.transactionid
      LEFT JOIN pg_locks h ON h.locktype = 'transactionid' AND h.transactionid = w.transactionid AND h.granted
      LEFT JOIN pg_stat_activity b ON b.pid = h.pid
     WHERE w.locktype = 'transactionid' AND NOT w.granted AND w.waitstart < clock_timestamp() - interval '3 seconds';
END $$;

--- What is used up on this server; of connections, the given percentage counts as used up
CREATE FUNCTION mantle.exhaustion_problems(p_percent int) RETURNS TABLE (problem text, culprit text, detail text)
LANGUAGE plpgsql VOLATILE {as_caller} AS $$
DECLARE
    v_used bigint;
    v_most text;
    -- The rest is for superusers, and from 16 on for a role.
    v_connections int := current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
                         - coalesce(current_setting('reserved_connections', true)::int, 0);
    v_slots int := current_setting('max_replication_slots')::int;
    v_senders int := current_setting('max_wal_senders')::int;
    v_prepared int := current_setting('max_prepared_transactions')::int;
BEGIN
    SELECT sum(u.used), (array_agg(format('%s by role %s', u.used, u.name) ORDER BY u.used DESC, u.name))[1]
      INTO v_used, v_most
      FROM (SELECT coalesce(a.usename, '-') AS name, count(*) AS used FROM pg_stat_activity a
             WHERE a.backend_type = 'client backend' GROUP BY 1) AS u;
    IF v_used * 100 >= v_connections * p_percent THEN
        RETURN QUERY VALUES ('connections', 'max_connections',
                             format('%s of %s connections are in use, %s', v_used, v_connections, v_most));
    END IF;
    RETURN QUERY
    SELECT 'connections', format('CONNECTION LIMIT of role %I', r.rolname),
           format('%s of %s connections are in use', u.used, r.rolconnlimit)
      FROM pg_roles r CROSS JOIN LATERAL (
               SELECT count(*) AS used FROM pg_stat_activity a
                WHERE a.usesysid = r.oid AND a.backend_type = 'client backend') AS u
     WHERE (r.rolconnlimit > 0 OR r.rolconnlimit = 0 AND r.rolname IN (SELECT s FROM mantle.service_roles() AS s))
       AND u.used * 100 >= r.rolconnlimit * p_percent;
    RETURN QUERY
    SELECT 'connections', format('CONNECTION LIMIT of database %I', d.datname),
           format('%s of %s connections are in use', u.used, d.datconnlimit)
      FROM pg_database d CROSS JOIN LATERAL (
               SELECT count(*) AS used FROM pg_stat_activity a
                WHERE a.datid = d.oid AND a.backend_type = 'client backend') AS u
     WHERE (d.datconnlimit > 0 OR d.datconnlimit = 0 AND d.datname = current_database())
       AND u.used * 100 >= d.datconnlimit * p_percent;
    RETURN QUERY
    SELECT 'slots', 'max_replication_slots',
           format('all %s slots are in use, so none can be made; without a reader: %s', v_slots,
                  coalesce(string_agg(s.slot_name, ', ' ORDER BY s.slot_name) FILTER (WHERE NOT s.active), 'none'))
      FROM pg_replication_slots s HAVING count(*) >= v_slots;
    RETURN QUERY
    SELECT 'wal_senders', 'max_wal_senders',
           format('all %s are in use: %s', v_senders,
                  string_agg(format('%s (process %s)', a.application_name, a.pid), ', ' ORDER BY a.pid))
      FROM pg_stat_activity a WHERE a.backend_type = 'walsender' HAVING count(*) >= v_senders;
    RETURN QUERY
    SELECT 'prepared_transactions', 'max_prepared_transactions', format('all %s are in use', v_prepared)
      FROM pg_prepared_xacts x HAVING v_prepared > 0 AND count(*) >= v_prepared;
END $$;

--- Login roles of services that cannot log in again. Sessions that they have, go on, so nothing else shows it before a restart
CREATE FUNCTION mantle.login_problems() RETURNS TABLE (problem text, culprit text, detail text)
LANGUAGE sql STABLE {as_caller} AS $$
    SELECT 'login', format('role %I', r.rolname),
           CASE WHEN NOT r.rolcanlogin THEN 'has sessions and is NOLOGIN: it gets no new ones'
                ELSE format('its password was valid until %s: it gets no new sessions. ALTER ROLE %I VALID UNTIL', r.rolvaliduntil,
                            r.rolname) END
      FROM pg_roles r
     WHERE NOT r.rolcanlogin AND EXISTS (SELECT FROM pg_stat_activity a WHERE a.usesysid = r.oid)
        OR r.rolvaliduntil < clock_timestamp() AND r.rolname IN (SELECT s FROM mantle.service_roles() AS s)
     ORDER BY r.rolname
$$;

--- Certificates of this server that expire within this many days, or that were replaced and are not loaded
CREATE FUNCTION mantle.certificate_problems(p_days int) RETURNS TABLE (problem text, culprit text, detail text)
LANGUAGE plpgsql VOLATILE {as_caller} AS $$
BEGIN
    IF NOT current_setting('ssl')::boolean THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT 'certificate', c.setting,
           CASE WHEN c.expires IS NULL THEN 'the file has no certificate that can be read'
                WHEN c.expires < clock_timestamp() + p_days * interval '1 day'
                THEN format('the first certificate of the file expires at %s, in %s days', c.expires,
                            round(extract(epoch FROM c.expires - clock_timestamp()) / 86400, 1))
                ELSE format('the file was changed at %s and is not loaded: SELECT pg_reload_conf()', c.changed) END
      FROM mantle.server_certificates() AS c
     WHERE c.expires IS NULL OR c.expires < clock_timestamp() + p_days * interval '1 day'
        OR c.changed > (SELECT s.loaded FROM mantle.worker_signs() AS s);
END $$;

--- mantle.server_problems with these limits: ages of a transaction and of a prepared one, the age of a snapshot in
--- transactions, the percentage of connections in use, and the age of a database in transactions
CREATE FUNCTION mantle.server_problems_beyond(
    p_transaction interval, p_prepared interval, p_snapshot bigint, p_percent int, p_frozen bigint)
RETURNS TABLE (problem text, culprit text, detail text) LANGUAGE plpgsql VOLATILE {as_caller} AS $$
#variable_conflict use_column
DECLARE
    -- Most transactions that are named, the oldest.
    v_named int := 10;
BEGIN
    RETURN QUERY SELECT p.problem, p.culprit, p.detail FROM mantle.slot_problems() AS p;
    RETURN QUERY
    SELECT CASE WHEN t.prepared THEN 'prepared_transaction' ELSE 'open_transaction' END, t.culprit, t.detail
      FROM mantle.open_transactions() AS t
     WHERE t.since < clock_timestamp() - CASE WHEN t.prepared THEN p_prepared ELSE p_transaction END
        OR t.snapshot_age > p_snapshot
     ORDER BY t.since LIMIT v_named;
    RETURN QUERY
    SELECT 'old_snapshot', format('slot %I', s.slot_name),
           format('%s, keeps rows of the last %s transactions from vacuum', CASE WHEN s.active THEN 'read' ELSE 'not read' END,
                  greatest(age(s.xmin), age(s.catalog_xmin)))
      FROM pg_replication_slots s WHERE greatest(age(s.xmin), age(s.catalog_xmin)) > p_snapshot ORDER BY s.slot_name;
    RETURN QUERY
    SELECT 'old_snapshot', format('standby %s', r.application_name),
           format('at %s, its hot_standby_feedback keeps rows of the last %s transactions from vacuum',
                  coalesce(host(r.client_addr), 'this machine'), age(r.backend_xmin))
      FROM pg_stat_replication r WHERE age(r.backend_xmin) > p_snapshot ORDER BY r.application_name, r.pid;
    RETURN QUERY SELECT p.problem, p.culprit, p.detail FROM mantle.exhaustion_problems(p_percent) AS p;
    RETURN QUERY SELECT p.problem, p.culprit, p.detail FROM mantle.login_problems() AS p;
    RETURN QUERY
    SELECT 'wraparound', format('database %I', d.datname),
           format('its oldest row is %s transactions old, and at 2,147 million the server stops: VACUUM (FREEZE) there',
                  age(d.datfrozenxid))
      FROM pg_database d WHERE age(d.datfrozenxid) > p_frozen ORDER BY d.datname;
    IF NOT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') THEN
        RETURN QUERY VALUES ('statistics', format('role %I', current_user),
                             'owns mantle and sees no transactions of others: GRANT pg_read_all_stats TO it');
    END IF;
END $$;

--- gateway, index, monitor: What delays this server, is used up or expires: the problem's kind, the culprit, and details.
--- No row: nothing. The limits are settings
CREATE FUNCTION mantle.server_problems() RETURNS TABLE (problem text, culprit text, detail text)
LANGUAGE plpgsql VOLATILE {as_owner} AS $$
#variable_conflict use_column
DECLARE
    -- NULL, so that nothing is named, if the library is not loaded.
    v_transaction int := current_setting('mantle.transaction_age_max_s', true);
    v_prepared int := current_setting('mantle.prepared_age_max_s', true);
    -- Half of what is possible. Vacuum begins to freeze at autovacuum_freeze_max_age, 200 million unless configured.
    v_frozen bigint := 1000000000;
BEGIN
    RETURN QUERY
    -- Names of other databases, roles and transactions may hold anything; this goes into logs.
    SELECT p.problem, regexp_replace(p.culprit, '[[:cntrl:]]', ' ', 'g'), regexp_replace(p.detail, '[[:cntrl:]]', ' ', 'g')
      FROM mantle.server_problems_beyond(
               v_transaction * interval '1 second', v_prepared * interval '1 second',
               current_setting('mantle.snapshot_age_max_xids', true)::bigint,
               current_setting('mantle.connections_max_percent', true)::int, v_frozen) AS p;
    RETURN QUERY SELECT p.problem, p.culprit, p.detail
      FROM mantle.certificate_problems(current_setting('mantle.certificate_days_min', true)::int) AS p;
END $$;
