-- Moves an object's row. Under Citus the two places may be two shards: delete and insert, never an update of the key.
CREATE FUNCTION mantle.rename_object_one(
    p_principal int, p_ns bigint, p_src_pid bigint, p_src_name text, p_dst_pid bigint, p_dst_name text,
    p_overwrite boolean, p_request uuid, p_hash bigint)
RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_src mantle.meta;
    v_dst mantle.meta;
    v_new mantle.outcome;
    v_same boolean := p_src_pid = p_dst_pid AND p_src_name = p_dst_name;
BEGIN
    -- Both rows in one sorted statement (PROTOCOLS 12), then told apart.
    PERFORM FROM mantle.meta m
      WHERE m.ts = 0 AND (m.pid = p_src_pid AND m.name = p_src_name OR m.pid = p_dst_pid AND m.name = p_dst_name)
      ORDER BY m.pid, m.name FOR UPDATE;
    SELECT * INTO v_src FROM mantle.meta m
     WHERE m.pid = p_src_pid AND m.name = p_src_name AND m.ts = 0 AND m.ns = p_ns;
    SELECT * INTO v_dst FROM mantle.meta m WHERE m.pid = p_dst_pid AND m.name = p_dst_name AND m.ts = 0;
    v_new.code := CASE
        WHEN v_src.id IS NULL THEN 'MT010'
        WHEN EXISTS (SELECT FROM mantle.meta m WHERE m.pid = p_dst_pid AND m.name = p_dst_name || '/' AND m.ts = 0) THEN 'MT015'
        WHEN v_dst.id IS NOT NULL AND NOT p_overwrite THEN 'MT012' END;
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    IF NOT mantle.claim(p_principal, p_ns, p_request, p_hash, 'rename_object', p_dst_pid, v_src.id, v_src.version) THEN
        RETURN mantle.recall(p_principal, p_ns, p_request, p_hash);
    END IF;
    v_new.id := v_src.id;
    v_new.replayed := false;
    IF v_same THEN
        RETURN v_new;
    END IF;
    DELETE FROM mantle.meta m WHERE m.pid = p_dst_pid AND m.name = p_dst_name AND m.ts = 0;
    DELETE FROM mantle.meta m WHERE m.pid = p_src_pid AND m.name = p_src_name AND m.ts = 0;
    v_new.old_locator := v_dst.locator;
    v_new.delta := ROW(p_ns, p_dst_pid, (v_dst.id IS NULL)::int, 0, v_src.size - coalesce(v_dst.size, 0));
    v_src.pid := p_dst_pid;
    v_src.name := p_dst_name;
    INSERT INTO mantle.meta SELECT v_src.*;
    INSERT INTO mantle.prune_queue (id) VALUES (p_src_pid);
    PERFORM mantle.apply_deltas(ARRAY[ROW(p_ns, p_src_pid, -1, 0, -v_src.size)::mantle.delta, v_new.delta]);
    RETURN v_new;
END $$;
COMMENT ON FUNCTION mantle.rename_object_one(int, bigint, bigint, text, bigint, text, boolean, uuid, bigint) IS
    'Moves one object under its latches';
REVOKE ALL ON FUNCTION mantle.rename_object_one(int, bigint, bigint, text, bigint, text, boolean, uuid, bigint) FROM PUBLIC;

CREATE FUNCTION mantle.rename_object(
    p_principal int, p_ns bigint, p_src_pid bigint, p_src_name text, p_dst_pid bigint, p_dst_name text,
    p_overwrite boolean, p_request uuid, p_hash bigint,
    OUT code text, OUT id bigint, OUT replayed boolean, OUT flush_lsn pg_lsn, OUT old_locator text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    c mantle.batch_context;
    o mantle.outcome;
BEGIN
    PERFORM mantle.fault(mantle.latch_entries(ARRAY[p_src_pid, p_dst_pid], ARRAY[p_src_name, p_dst_name]));
    c := mantle.batch_context(ARRAY[p_principal], ARRAY[p_ns], ARRAY[p_dst_pid], '{}', ARRAY[p_request]);
    o.code := CASE
        WHEN p_request = ANY (c.known) THEN NULL
        WHEN p_ns IS NULL OR cardinality(c.missing) > 0 THEN 'MT011'
        WHEN (p_src_pid >= 1024 AND p_dst_pid >= 1024 AND p_overwrite IS NOT NULL AND p_request IS NOT NULL) IS NOT TRUE
            THEN 'MT006'
        WHEN cardinality(c.removed) > 0 THEN 'MT018'
        ELSE coalesce(mantle.object_name_fault(p_src_name), mantle.object_name_fault(p_dst_name)) END;
    IF p_request = ANY (c.known) THEN
        o := mantle.recall(p_principal, p_ns, p_request, p_hash);
    ELSIF o.code IS NULL THEN
        o := mantle.rename_object_one(
            p_principal, p_ns, p_src_pid, p_src_name, p_dst_pid, p_dst_name, p_overwrite, p_request, p_hash);
    END IF;
    code := o.code; id := o.id; replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
    old_locator := o.old_locator;
END $$;
COMMENT ON FUNCTION mantle.rename_object(int, bigint, bigint, text, bigint, text, boolean, uuid, bigint) IS
    'Renames an object within its namespace; with overwrite, replaces one and answers its data locator';
REVOKE ALL ON FUNCTION mantle.rename_object(int, bigint, bigint, text, bigint, text, boolean, uuid, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.rename_object(int, bigint, bigint, text, bigint, text, boolean, uuid, bigint)
    TO mantle_gateway;
