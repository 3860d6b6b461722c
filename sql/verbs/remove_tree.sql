-- Removing a directory with all that is below it, in one transaction of constant cost: like a directory rename, into the
-- trash (pid 1, named by its id), which no path leads to. The worker empties it there (sql/admin/empty_trash.sql).
-- Fenced as a rename is: the index has prepared it under `p_epoch`, by the log index `p_attempt`, and refuses while a
-- rename's lock lies below the directory. So no rename takes anything out of the trash, or puts a directory into it.
-- The trash has no counts: nobody reads them, and every removal would change them.

-- Replay, source, claim; then the move. Latched, fenced.
CREATE FUNCTION mantle.remove_tree_attempt(
    p_principal int, p_ns bigint, p_src_pid bigint, p_src_name text, p_src_id bigint, p_attempt bigint, p_request uuid,
    p_hash bigint, p_operation uuid)
RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_dir mantle.meta;
    v_new mantle.outcome := mantle.recall(p_principal, p_ns, p_request, p_hash);
BEGIN
    IF v_new.code IS NOT NULL OR v_new.replayed THEN
        RETURN v_new;
    END IF;
    SELECT * INTO v_dir FROM mantle.meta m
     WHERE m.pid = p_src_pid AND m.name = p_src_name AND m.ts = 0 AND m.ns = p_ns FOR UPDATE;
    IF v_dir.id IS DISTINCT FROM p_src_id THEN
        v_new.code := 'MT026';
        RETURN v_new;
    END IF;
    v_dir.version := v_dir.version + 1;
    IF NOT mantle.claim(p_principal, p_ns, p_request, p_hash, 'remove_tree', p_src_pid, v_dir.id, v_dir.version) THEN
        RETURN mantle.recall(p_principal, p_ns, p_request, p_hash);
    END IF;
    DELETE FROM mantle.meta m WHERE m.pid = p_src_pid AND m.name = p_src_name AND m.ts = 0;
    v_dir.pid := 1;
    v_dir.name := v_dir.id || '/';
    INSERT INTO mantle.meta SELECT v_dir.*;
    INSERT INTO mantle.operations (id, ns, principal, kind, directory_id)
    VALUES (p_operation, p_ns, p_principal, 'remove_tree', v_dir.id);
    INSERT INTO mantle.prune_queue (id) VALUES (p_src_pid);
    PERFORM mantle.finish(p_attempt, ARRAY[
        ROW(false, p_ns, 1, v_dir.name, v_dir.id, v_dir.version, v_dir.owner, v_dir.grp, v_dir.mode, p_principal,
            p_request)::mantle.directory_change],
        ARRAY[ROW(p_ns, p_src_pid, -1, -1, 0)::mantle.delta]);
    v_new.id := v_dir.id;
    v_new.version := v_dir.version;
    v_new.replayed := false;
    RETURN v_new;
END $$;
COMMENT ON FUNCTION mantle.remove_tree_attempt(int, bigint, bigint, text, bigint, bigint, uuid, bigint, uuid) IS
    'Checks the source of a removal under its latches, then moves it into the trash';
REVOKE ALL ON FUNCTION mantle.remove_tree_attempt(int, bigint, bigint, text, bigint, bigint, uuid, bigint, uuid) FROM PUBLIC;

-- The order of checks, and the attempt's row, are those of mantle.rename_directory.
CREATE FUNCTION mantle.remove_tree(
    p_principal int, p_ns bigint, p_src_pid bigint, p_src_name text, p_src_id bigint, p_index_group int, p_epoch bigint,
    p_attempt bigint, p_request uuid, p_hash bigint, p_operation uuid,
    OUT code text, OUT id bigint, OUT version bigint, OUT replayed boolean, OUT flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    c mantle.batch_context;
    o mantle.outcome;
    v_epoch bigint;
BEGIN
    replayed := false;
    PERFORM mantle.fault(mantle.latch_epoch(p_index_group, false));
    PERFORM mantle.fault(mantle.latch_entries(ARRAY[p_src_pid], ARRAY[p_src_name]));
    -- Of the group that serves the namespace: another one's epoch fences nothing here.
    SELECT g.epoch INTO v_epoch FROM mantle.index_groups g
     WHERE g.index_group = p_index_group
       AND g.index_group = (SELECT n.index_group FROM mantle.namespaces n WHERE n.ns = p_ns);
    c := mantle.batch_context('{}', ARRAY[p_ns], '{}', '{}', '{}');
    code := CASE
        WHEN p_ns IS NULL OR cardinality(c.missing) > 0 THEN 'MT011'
        WHEN (p_src_pid >= 1024 AND p_src_id IS NOT NULL AND p_attempt IS NOT NULL AND p_request IS NOT NULL
              AND p_operation IS NOT NULL) IS NOT TRUE THEN 'MT006'
        WHEN mantle.directory_name_fault(p_src_name) IS NOT NULL THEN mantle.directory_name_fault(p_src_name)
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
    ELSE
        o := mantle.remove_tree_attempt(p_principal, p_ns, p_src_pid, p_src_name, p_src_id, p_attempt, p_request, p_hash,
                                        p_operation);
    END IF;
    IF o.code IS NOT NULL OR o.replayed THEN
        DELETE FROM mantle.rename_attempts a
         WHERE (a.ns, a.principal, a.request_id, a.attempt) = (p_ns, p_principal, p_request, p_attempt);
    END IF;
    code := o.code; id := o.id; version := o.version; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
END $$;
COMMENT ON FUNCTION mantle.remove_tree(int, bigint, bigint, text, bigint, int, bigint, bigint, uuid, bigint, uuid) IS
    'Moves a directory, with all that is below it, into the trash, and begins the operation that empties it';
REVOKE ALL ON FUNCTION mantle.remove_tree(int, bigint, bigint, text, bigint, int, bigint, bigint, uuid, bigint, uuid)
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.remove_tree(int, bigint, bigint, text, bigint, int, bigint, bigint, uuid, bigint, uuid)
    TO mantle_gateway;
