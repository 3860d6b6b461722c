-- One directory. Latched: pid shared, name exclusive; so what is read here stays until the commit.
CREATE FUNCTION mantle.mkdir_one(
    p_principal int, p_ns bigint, p_pid bigint, p_name text, p_id bigint, p_owner int, p_grp int, p_mode int,
    p_explicit boolean, p_user_metadata jsonb, p_request uuid, p_hash bigint)
RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_old mantle.meta;
    v_new mantle.outcome;
BEGIN
    SELECT * INTO v_old FROM mantle.meta m WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0 FOR UPDATE;
    IF v_old.id IS NOT NULL THEN
        v_new.id := v_old.id;
        v_new.version := v_old.version;
        IF v_old.explicit OR NOT p_explicit THEN
            v_new.code := 'MT012';
            RETURN v_new;
        END IF;
        v_new.version := v_old.version + 1;
    ELSIF EXISTS (SELECT FROM mantle.meta m WHERE m.pid = p_pid AND m.name = left(p_name, -1) AND m.ts = 0) THEN
        v_new.code := 'MT016';
        RETURN v_new;
    ELSE
        v_new.id := p_id;
        v_new.version := 1;
    END IF;
    IF NOT mantle.claim(p_principal, p_ns, p_request, p_hash, 'mkdir', p_pid, v_new.id, v_new.version) THEN
        RETURN mantle.recall(p_principal, p_ns, p_request, p_hash);
    END IF;
    IF v_old.id IS NOT NULL THEN
        -- An implicit directory becomes explicit; its owner and mode stay.
        UPDATE mantle.meta m
           SET explicit = true, version = v_new.version, user_metadata = coalesce(p_user_metadata, m.user_metadata)
         WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0;
        v_new.change := ROW(false, p_pid, p_name, v_old.id, v_new.version, v_old.owner, v_old.grp, v_old.mode, p_request);
    ELSE
        INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, explicit, user_metadata, created)
        VALUES (p_pid, p_name, p_ns, p_id, p_owner, p_grp, p_mode, 1, p_explicit, p_user_metadata, now());
        v_new.change := ROW(false, p_pid, p_name, p_id, 1, p_owner, p_grp, p_mode, p_request);
        v_new.delta := ROW(p_pid, 1, 1, 0);
        IF NOT p_explicit THEN
            -- For an object that may never come: its PUT can fail after this.
            INSERT INTO mantle.prune_queue (id) VALUES (p_id);
        END IF;
    END IF;
    v_new.replayed := false;
    RETURN v_new;
END $$;
COMMENT ON FUNCTION mantle.mkdir_one(int, bigint, bigint, text, bigint, int, int, int, boolean, jsonb, uuid, bigint) IS
    'Makes one directory of a batch';
REVOKE ALL ON FUNCTION mantle.mkdir_one(int, bigint, bigint, text, bigint, int, int, int, boolean, jsonb, uuid, bigint)
    FROM PUBLIC;

CREATE FUNCTION mantle.mkdir(
    p_principal int, p_ns bigint, p_pid bigint[], p_name text[], p_id bigint[], p_owner int[], p_grp int[], p_mode int[],
    p_explicit boolean[], p_user_metadata jsonb[], p_request uuid[], p_hash bigint[])
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    c mantle.batch_context;
    e record;
    o mantle.outcome;
    v_changes mantle.directory_change[] := '{}';
    v_deltas mantle.delta[] := '{}';
BEGIN
    PERFORM mantle.fault(mantle.batch_fault(cardinality(p_name), ARRAY[
        cardinality(p_pid), cardinality(p_id), cardinality(p_owner), cardinality(p_grp), cardinality(p_mode),
        cardinality(p_explicit), cardinality(p_user_metadata), cardinality(p_request), cardinality(p_hash)]));
    PERFORM mantle.fault(mantle.latch_entries(p_pid, p_name));
    c := mantle.batch_context(p_principal, p_ns, p_pid, p_id, p_request);
    FOR e IN
        SELECT u.*, CASE
                 WHEN NOT c.ns_exists THEN 'MT011'
                 WHEN mantle.directory_name_fault(u.name) IS NOT NULL THEN mantle.directory_name_fault(u.name)
                 WHEN (u.pid >= 1024 AND u.owner >= 0 AND u.grp >= 0 AND u.mode BETWEEN 0 AND 511 AND u.explicit IS NOT NULL
                       AND u.request IS NOT NULL) IS NOT TRUE THEN 'MT006'
                 WHEN u.id IS NULL OR u.id = ANY (c.unrecorded) THEN 'MT040'
                 WHEN u.pid = ANY (c.removed) THEN 'MT018' END AS refusal
          FROM unnest(p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_explicit, p_user_metadata, p_request, p_hash)
               WITH ORDINALITY AS u(pid, name, id, owner, grp, mode, explicit, user_metadata, request, hash, n)
         ORDER BY u.pid, u.name COLLATE "C", u.n
    LOOP
        o := NULL;
        IF e.request = ANY (c.known) THEN
            o := mantle.recall(p_principal, p_ns, e.request, e.hash);
        ELSIF e.refusal IS NOT NULL THEN
            o.code := e.refusal;
        ELSE
            o := mantle.mkdir_one(p_principal, p_ns, e.pid, e.name, e.id, e.owner, e.grp, e.mode, e.explicit,
                                  e.user_metadata, e.request, e.hash);
        END IF;
        IF (o.change).id IS NOT NULL THEN v_changes := v_changes || o.change; END IF;
        IF (o.delta).pid IS NOT NULL THEN v_deltas := v_deltas || o.delta; END IF;
        ord := e.n; code := o.code; id := o.id; version := o.version;
        replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.finish(p_principal, p_ns, 0, p_ns, v_changes, v_deltas);
END $$;
COMMENT ON FUNCTION mantle.mkdir(
    int, bigint, bigint[], text[], bigint[], int[], int[], int[], boolean[], jsonb[], uuid[], bigint[]) IS
    'Makes directories. Names end in a slash. MT012 with the id when one exists; an explicit mkdir of an implicit one succeeds';
REVOKE ALL ON FUNCTION mantle.mkdir(
    int, bigint, bigint[], text[], bigint[], int[], int[], int[], boolean[], jsonb[], uuid[], bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.mkdir(
    int, bigint, bigint[], text[], bigint[], int[], int[], int[], boolean[], jsonb[], uuid[], bigint[]) TO mantle_gateway;
