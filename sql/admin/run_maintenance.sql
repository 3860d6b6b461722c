-- The worker's steps, each short, each its own transaction. What a step could not latch stays for later. Answers how many
-- rows it worked on: 0 means that there is nothing to do now.

-- One directory a call, in order of pids, from the one this session was at: a hot directory cannot keep the others
-- waiting, and a full batch is followed by another of the same. 0 ends a round.
CREATE FUNCTION mantle.maintain_compaction(p_batch int) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_from bigint := coalesce(nullif(current_setting('mantle.compact_from', true), '')::bigint, 0);
    v_pid bigint;
    v_folded bigint;
BEGIN
    SELECT m.pid INTO v_pid FROM mantle.meta m WHERE m.ts > 0 AND m.pid >= v_from ORDER BY m.pid LIMIT 1;
    IF v_pid IS NULL THEN
        PERFORM set_config('mantle.compact_from', '0', false);
        RETURN 0;
    END IF;
    -- Held exclusively (an import, an rmdir): another time.
    v_folded := CASE WHEN mantle.try_latch_shared(v_pid) THEN mantle.compact_some(v_pid, p_batch) ELSE 0 END;
    PERFORM set_config('mantle.compact_from', (v_pid + (v_folded < p_batch)::int)::text, false);
    RETURN 1;
END $$;
COMMENT ON FUNCTION mantle.maintain_compaction(int) IS 'The worker''s compaction step';
REVOKE ALL ON FUNCTION mantle.maintain_compaction(int) FROM PUBLIC;

-- One directory a transaction: its latches go with it. All due requests for it are taken out before it is looked at, so
-- whatever they saw deleted is seen deleted.
CREATE FUNCTION mantle.maintain_pruning() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_due timestamptz := now() - current_setting('mantle.prune_grace_ms')::int * interval '1 millisecond';
    v_head mantle.prune_queue;
BEGIN
    SELECT * INTO v_head FROM mantle.prune_queue q ORDER BY q.seq LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF v_head.seq IS NULL OR v_head.queued > v_due THEN
        RETURN 0;
    END IF;
    DELETE FROM mantle.prune_queue q
     WHERE q.seq = ANY (ARRAY(SELECT p.seq FROM mantle.prune_queue p
                               WHERE p.seq BETWEEN v_head.seq AND v_head.seq + 1000 AND p.id = v_head.id
                                 AND p.queued <= v_due FOR UPDATE SKIP LOCKED));
    IF NOT mantle.prune(v_head.id) THEN
        INSERT INTO mantle.prune_queue (id) VALUES (v_head.id);
    END IF;
    RETURN 1;
END $$;
COMMENT ON FUNCTION mantle.maintain_pruning() IS 'The worker''s pruning step';
REVOKE ALL ON FUNCTION mantle.maintain_pruning() FROM PUBLIC;

CREATE FUNCTION mantle.run_maintenance(p_step text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    v_batch int := current_setting('mantle.compaction_batch')::int;
    v_requests timestamptz := now() - current_setting('mantle.request_retention_s')::int * interval '1 second';
    v_tombstones timestamptz := now() - current_setting('mantle.tombstone_retention_s')::int * interval '1 second';
    v_changed bigint := 0;
BEGIN
    CASE p_step
        WHEN 'compact' THEN v_changed := mantle.maintain_compaction(v_batch);
        WHEN 'prune' THEN v_changed := mantle.maintain_pruning();
        WHEN 'empty_trash' THEN v_changed := mantle.maintain_trash(v_batch);
        WHEN 'purge_operations' THEN
            DELETE FROM mantle.operations o WHERE o.ctid = ANY (ARRAY(
                SELECT d.ctid FROM mantle.operations d WHERE d.state = 'done' AND d.finished < v_requests
                 LIMIT v_batch FOR UPDATE SKIP LOCKED));
            GET DIAGNOSTICS v_changed = ROW_COUNT;
        WHEN 'purge_requests' THEN
            DELETE FROM mantle.requests r WHERE r.ctid = ANY (ARRAY(
                SELECT o.ctid FROM mantle.requests o WHERE o.created < v_requests LIMIT v_batch FOR UPDATE SKIP LOCKED));
            GET DIAGNOSTICS v_changed = ROW_COUNT;
        WHEN 'purge_tombstones' THEN
            DELETE FROM mantle.meta m WHERE m.ctid = ANY (ARRAY(
                SELECT o.ctid FROM mantle.meta o WHERE o.removed AND o.modified < v_tombstones
                 LIMIT v_batch FOR UPDATE SKIP LOCKED));
            GET DIAGNOSTICS v_changed = ROW_COUNT;
        WHEN 'purge_attempts' THEN
            DELETE FROM mantle.rename_attempts a WHERE a.ctid = ANY (ARRAY(
                SELECT o.ctid FROM mantle.rename_attempts o WHERE o.created < v_tombstones
                 LIMIT v_batch FOR UPDATE SKIP LOCKED));
            GET DIAGNOSTICS v_changed = ROW_COUNT;
    END CASE;
    RETURN v_changed;
END $$;
COMMENT ON FUNCTION mantle.run_maintenance(text) IS
    'One step of the background worker: compact, prune, empty_trash, purge_operations, purge_requests, purge_tombstones or purge_attempts';
REVOKE ALL ON FUNCTION mantle.run_maintenance(text) FROM PUBLIC;
