-- The transaction of a directory rename that the index has prepared: resolved, loop-checked and locked under `p_epoch`,
-- by the log index `p_attempt`. Order of checks: epoch, attempt, replay, source, destination. Everything is checked
-- before anything is written, but for the attempt's row, which must be written to be checked: it is taken back when the
-- call ends with a code or a replay, so that it says 'committed' only for the transaction that moved the directory. Until
-- then an abort of this attempt waits on the unique key.

-- Moves the row, buries the victim. Latched, checked, claimed.
CREATE FUNCTION mantle.rename_directory_move(
    p_principal int, p_ns bigint, p_src mantle.meta, p_dst_pid bigint, p_dst_name text, p_victim mantle.meta,
    p_attempt bigint, p_request uuid)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_new mantle.meta := p_src;
    v_changes mantle.directory_change[] := '{}';
    v_replaced int := 0;
BEGIN
    IF p_victim.id IS NOT NULL THEN
        PERFORM mantle.bury(p_ns, p_victim.id);
        DELETE FROM mantle.meta m WHERE m.pid = p_victim.pid AND m.name = p_victim.name AND m.ts = 0;
        v_changes := v_changes || ROW(true, p_ns, p_victim.pid, p_victim.name, p_victim.id, p_victim.version + 1, p_victim.owner,
                                      p_victim.grp, p_victim.mode, NULL, NULL)::mantle.directory_change;
        v_replaced := 1;
    END IF;
    DELETE FROM mantle.meta m WHERE m.pid = p_src.pid AND m.name = p_src.name AND m.ts = 0;
    v_new.pid := p_dst_pid;
    v_new.name := p_dst_name;
    v_new.version := p_src.version + 1;
    INSERT INTO mantle.meta SELECT v_new.*;
    INSERT INTO mantle.prune_queue (id) VALUES (p_src.pid);
    v_changes := v_changes || ROW(false, p_ns, p_dst_pid, p_dst_name, v_new.id, v_new.version, v_new.owner, v_new.grp,
                                  v_new.mode, p_principal, p_request)::mantle.directory_change;
    PERFORM mantle.finish(p_attempt, v_changes, ARRAY[
        ROW(p_ns, p_src.pid, -1, -1, 0)::mantle.delta, ROW(p_ns, p_dst_pid, 1 - v_replaced, 1 - v_replaced, 0)::mantle.delta]);
END $$;
COMMENT ON FUNCTION mantle.rename_directory_move(int, bigint, mantle.meta, bigint, text, mantle.meta, bigint, uuid) IS
    'Moves a directory''s entry, checked before';
REVOKE ALL ON FUNCTION mantle.rename_directory_move(int, bigint, mantle.meta, bigint, text, mantle.meta, bigint, uuid)
    FROM PUBLIC;

-- Replay, source, destination; then the move.
CREATE FUNCTION mantle.rename_directory_attempt(
    p_principal int, p_ns bigint, p_src_pid bigint, p_src_name text, p_src_id bigint, p_dst_pid bigint, p_dst_name text,
    p_victim_id bigint, p_attempt bigint, p_request uuid, p_hash bigint)
RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_src mantle.meta;
    v_dst mantle.meta;
    v_new mantle.outcome := mantle.recall(p_principal, p_ns, p_request, p_hash);
BEGIN
    IF v_new.code IS NOT NULL OR v_new.replayed THEN
        RETURN v_new;
    END IF;
    PERFORM FROM mantle.meta m
      WHERE m.ts = 0 AND (m.pid = p_src_pid AND m.name = p_src_name OR m.pid = p_dst_pid AND m.name = p_dst_name)
      ORDER BY m.pid, m.name FOR UPDATE;
    SELECT * INTO v_src FROM mantle.meta m
     WHERE m.pid = p_src_pid AND m.name = p_src_name AND m.ts = 0 AND m.ns = p_ns;
    SELECT * INTO v_dst FROM mantle.meta m WHERE m.pid = p_dst_pid AND m.name = p_dst_name AND m.ts = 0;
    v_new.code := CASE
        WHEN v_src.id IS DISTINCT FROM p_src_id THEN 'MT026'
        WHEN p_dst_pid = p_src_id THEN 'MT022'
        WHEN v_dst.id IS NOT NULL AND v_dst.id <> p_victim_id THEN 'MT012'
        WHEN v_dst.id = p_src_id THEN 'MT012'
        WHEN EXISTS (SELECT FROM mantle.meta m WHERE m.pid = p_dst_pid AND m.name = left(p_dst_name, -1) AND m.ts = 0)
            THEN 'MT016'
        WHEN v_dst.id IS NOT NULL AND NOT mantle.is_empty(v_dst.id) THEN 'MT017' END;
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    v_new.id := v_src.id;
    v_new.version := v_src.version + 1;
    IF NOT mantle.claim(p_principal, p_ns, p_request, p_hash, 'rename_directory', p_dst_pid, v_new.id, v_new.version) THEN
        RETURN mantle.recall(p_principal, p_ns, p_request, p_hash);
    END IF;
    v_new.replayed := false;
    PERFORM mantle.rename_directory_move(p_principal, p_ns, v_src, p_dst_pid, p_dst_name, v_dst, p_attempt, p_request);
    RETURN v_new;
END $$;
COMMENT ON FUNCTION mantle.rename_directory_attempt(
    int, bigint, bigint, text, bigint, bigint, text, bigint, bigint, uuid, bigint) IS
    'Checks source and destination of a directory rename under its latches, then moves';
REVOKE ALL ON FUNCTION mantle.rename_directory_attempt(
    int, bigint, bigint, text, bigint, bigint, text, bigint, bigint, uuid, bigint) FROM PUBLIC;

CREATE FUNCTION mantle.rename_directory(
    p_principal int, p_ns bigint, p_src_pid bigint, p_src_name text, p_src_id bigint, p_dst_pid bigint, p_dst_name text,
    p_victim_id bigint, p_index_group int, p_epoch bigint, p_attempt bigint, p_request uuid, p_hash bigint,
    OUT code text, OUT id bigint, OUT version bigint, OUT replayed boolean, OUT flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    c mantle.batch_context;
    o mantle.outcome;
    v_epoch bigint;
    v_busy boolean := p_victim_id <> 0 AND NOT mantle.is_empty(p_victim_id);
BEGIN
    replayed := false;
    PERFORM mantle.fault(mantle.latch_epoch(p_index_group, false));
    PERFORM mantle.fault(mantle.latch_entries(
        ARRAY[p_src_pid, p_dst_pid], ARRAY[p_src_name, p_dst_name],
        CASE WHEN p_victim_id <> 0 AND NOT v_busy THEN ARRAY[p_victim_id] END));
    -- Of the group that serves the namespace: another one's epoch fences nothing here.
    SELECT g.epoch INTO v_epoch FROM mantle.index_groups g
     WHERE g.index_group = p_index_group
       AND g.index_group = (SELECT n.index_group FROM mantle.namespaces n WHERE n.ns = p_ns);
    c := mantle.batch_context('{}', ARRAY[p_ns], ARRAY[p_dst_pid], '{}', '{}');
    code := CASE
        WHEN p_ns IS NULL OR cardinality(c.missing) > 0 THEN 'MT011'
        WHEN (p_src_pid >= 1024 AND p_dst_pid >= 1024 AND p_victim_id >= 0 AND p_attempt IS NOT NULL
              AND p_request IS NOT NULL AND p_src_id IS NOT NULL) IS NOT TRUE THEN 'MT006'
        WHEN mantle.directory_name_fault(p_src_name) IS NOT NULL THEN mantle.directory_name_fault(p_src_name)
        WHEN mantle.directory_name_fault(p_dst_name) IS NOT NULL THEN mantle.directory_name_fault(p_dst_name)
        WHEN (v_epoch = p_epoch) IS NOT TRUE THEN 'MT024' END;
    IF code IS NOT NULL THEN
        RETURN;
    END IF;
    INSERT INTO mantle.rename_attempts (ns, principal, request_id, attempt, state)
    VALUES (p_ns, p_principal, p_request, p_attempt, 'committed') ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        -- Aborted; or committed by this very attempt, whose answer was lost.
        o := mantle.recall(p_principal, p_ns, p_request, p_hash);
        code := CASE WHEN o.replayed THEN NULL ELSE coalesce(o.code, 'MT025') END;
        id := o.id; version := o.version; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM mantle.rename_attempts a
                WHERE (a.ns, a.principal, a.request_id) = (p_ns, p_principal, p_request) AND a.attempt > p_attempt) THEN
        o.code := 'MT025';
    ELSIF cardinality(c.removed) > 0 THEN
        o.code := 'MT018';
    ELSIF v_busy THEN
        o.code := 'MT017';
    ELSE
        o := mantle.rename_directory_attempt(p_principal, p_ns, p_src_pid, p_src_name, p_src_id, p_dst_pid, p_dst_name,
                                             p_victim_id, p_attempt, p_request, p_hash);
    END IF;
    IF o.code IS NOT NULL OR o.replayed THEN
        DELETE FROM mantle.rename_attempts a
         WHERE (a.ns, a.principal, a.request_id, a.attempt) = (p_ns, p_principal, p_request, p_attempt);
    END IF;
    code := o.code; id := o.id; version := o.version; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
END $$;
COMMENT ON FUNCTION mantle.rename_directory(
    int, bigint, bigint, text, bigint, bigint, text, bigint, int, bigint, bigint, uuid, bigint) IS
    'Commits a directory rename that the index prepared; p_victim_id 0: the destination must be free';
REVOKE ALL ON FUNCTION mantle.rename_directory(
    int, bigint, bigint, text, bigint, bigint, text, bigint, int, bigint, bigint, uuid, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.rename_directory(
    int, bigint, bigint, text, bigint, bigint, text, bigint, int, bigint, bigint, uuid, bigint) TO mantle_gateway;
