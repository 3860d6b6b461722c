-- The background worker of this database: what its steps did last, and what is wrong with it.

--- The steps of this database's background worker, and the outcome of each: on this node, since the server started
-- From shared memory (extension/src/worker/outcomes.rs): a worker that has nothing to do writes nothing.
CREATE VIEW mantle.worker_steps AS
SELECT s.step, s.succeeded, s.failures, s.failing_since, s.failed, s.fatal, s.sqlstate, s.message
  FROM mantle.worker_steps_now() AS s;
GRANT SELECT ON mantle.worker_steps TO mantle_monitor;
COMMENT ON COLUMN mantle.worker_steps.succeeded IS 'When it succeeded last, also if there was nothing to do';
COMMENT ON COLUMN mantle.worker_steps.failures IS 'Failures since then, one after the other';
COMMENT ON COLUMN mantle.worker_steps.failing_since IS 'The first of these failures';
COMMENT ON COLUMN mantle.worker_steps.failed IS 'The last failure, with its SQLSTATE and message; it may be over';
COMMENT ON COLUMN mantle.worker_steps.fatal IS 'Whether it ended the worker; otherwise the step was tried again';

--- gateway, monitor: What is wrong with this database's background worker on this node, a text each. No row: nothing
-- A step that failed once is not told: the next attempt mostly succeeds, for example after a failover. Nor is one told
-- for a minute that only waits for somebody, such as a shard's move: such an error does not end the worker. The
-- launcher starts a worker within a second, and again five seconds after one has ended.
CREATE FUNCTION mantle.worker_problems() RETURNS SETOF text LANGUAGE plpgsql VOLATILE {as_owner} AS $$
DECLARE
    v_grace interval := interval '10 seconds';
    v_long interval := interval '1 minute';
    v_signs record;
BEGIN
    SELECT s.launched, s.seen INTO v_signs FROM mantle.worker_signs() AS s;
    IF NOT FOUND THEN
        RETURN NEXT 'shared_preload_libraries lacks mantle: no worker runs here';
        RETURN;
    ELSIF NOT ARRAY['*', current_database()::text] &&
            regexp_split_to_array(trim(current_setting('mantle.compaction_databases')), '\s*,\s*') THEN
        RETURN NEXT 'mantle.compaction_databases lacks this database';
        RETURN;
    ELSIF pg_is_in_recovery() THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT format('step %s has failed %s times since %s, at last with %s: %s',
                  w.step, w.failures, date_trunc('second', w.failing_since), w.sqlstate, w.message)
      FROM mantle.worker_steps_now() AS w
     WHERE w.failures > 1 AND (w.fatal OR w.failing_since < clock_timestamp() - v_long);
    RETURN QUERY
    SELECT format('its transaction has run since %s: %s', date_trunc('second', a.xact_start), a.query)
      FROM pg_stat_activity a
     WHERE a.backend_type = 'mantle worker' AND a.datname = current_database()
       AND a.xact_start < clock_timestamp() - v_long;
    IF greatest(v_signs.launched, v_signs.seen) < clock_timestamp() - v_grace
       AND NOT EXISTS (SELECT FROM pg_stat_activity a
                        WHERE a.backend_type = 'mantle worker' AND a.datname = current_database()) THEN
        RETURN NEXT 'none runs' || coalesce(', since ' || date_trunc('second', v_signs.seen),
                                            ': the launcher looks for a new extension once a minute, or on a reload');
    END IF;
END $$;
