--- The transactions on this node that record answers to requests, by their virtual ids
-- A writer's lock on the table, and on its shard, lasts until others see what was written.
CREATE FUNCTION mantle.recording_transactions() RETURNS SETOF text LANGUAGE sql VOLATILE AS $$
    SELECT DISTINCT l.virtualtransaction
      FROM pg_locks l
     WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
       AND l.relation IN (SELECT 'mantle.requests'::regclass UNION ALL SELECT s FROM mantle.local_shards('requests') s)
$$;

--- gateway: Waits until every answer that is being recorded on this node now is recorded, or is not going to be
-- A change that has committed and waits for its standby is seen by nobody yet. Only the index may show it, because it
-- reads the change stream. So a retry may be refused because of its own first attempt. After this wait its answer is
-- looked for once more (P19).
CREATE FUNCTION mantle.await_answers() RETURNS void LANGUAGE plpgsql VOLATILE {as_owner} AS $$
DECLARE
    v_recording text[] := ARRAY(SELECT t FROM mantle.recording_transactions() t ORDER BY t);
    -- As long as a change waits for a lock.
    v_until timestamptz := clock_timestamp() + interval '2 s';
BEGIN
    WHILE v_recording <> '{}' LOOP
        IF clock_timestamp() > v_until THEN
            RAISE EXCEPTION USING ERRCODE = 'lock_not_available',
                MESSAGE = 'an earlier attempt of the request may be under way',
                DETAIL = format('Transactions that have recorded answers for 2 s: %s.', v_recording);
        END IF;
        PERFORM pg_sleep(0.002);
        v_recording := ARRAY(SELECT t FROM mantle.recording_transactions() t WHERE t = ANY (v_recording) ORDER BY t);
    END LOOP;
END $$;
