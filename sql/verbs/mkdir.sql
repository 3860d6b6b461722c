-- Makes directories: a single new one, at once or one by one, as mantle.put_object does.

CREATE FUNCTION mantle.mkdir_new(
    p_principal int, p_ns bigint, p_pid bigint, p_name text, p_id bigint, p_owner int, p_grp int, p_mode int,
    p_explicit boolean, p_user_metadata jsonb, p_request uuid, p_hash bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF (p_pid >= 1024 AND p_owner >= 0 AND p_grp >= 0 AND p_mode BETWEEN 0 AND 511 AND p_explicit IS NOT NULL
        AND p_request IS NOT NULL AND p_principal IS NOT NULL
        AND mantle.directory_name_fault(p_name) IS NULL AND mantle.is_free(p_ns, p_pid, left(p_name, -1), p_id)) IS NOT TRUE THEN
        RETURN false;
    END IF;
    INSERT INTO mantle.requests (ns, principal, request_id, request_hash, verb, pid, id, version)
    VALUES (p_ns, p_principal, p_request, coalesce(p_hash, 0), 'mkdir', p_pid, p_id, 1)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, explicit, user_metadata, created)
    VALUES (p_pid, p_name, p_ns, p_id, p_owner, p_grp, p_mode, 1, p_explicit, p_user_metadata, now());
    IF NOT p_explicit THEN
        -- For an object that may never come: its PUT can fail after this.
        INSERT INTO mantle.prune_queue (id) VALUES (p_id);
    END IF;
    PERFORM mantle.add_counts(p_ns, p_pid, 1, 1, 0);
    PERFORM mantle.fault(mantle.emit_directories(
                NULL, 0, ARRAY[false], ARRAY[p_ns], ARRAY[p_pid], ARRAY[p_name], ARRAY[p_id], '{1}', ARRAY[p_owner],
                ARRAY[p_grp], ARRAY[p_mode], ARRAY[p_principal], ARRAY[p_request]));
    RETURN true;
END $$;
COMMENT ON FUNCTION mantle.mkdir_new(int, bigint, bigint, text, bigint, int, int, int, boolean, jsonb, uuid, bigint) IS
    'Makes one new directory; false: nothing done, take the way for all cases';
REVOKE ALL ON FUNCTION mantle.mkdir_new(int, bigint, bigint, text, bigint, int, int, int, boolean, jsonb, uuid, bigint)
    FROM PUBLIC;

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
        v_new.change := ROW(false, p_ns, p_pid, p_name, v_old.id, v_new.version, v_old.owner, v_old.grp, v_old.mode, p_principal,
                            p_request);
    ELSE
        INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, explicit, user_metadata, created)
        VALUES (p_pid, p_name, p_ns, p_id, p_owner, p_grp, p_mode, 1, p_explicit, p_user_metadata, now());
        v_new.change := ROW(false, p_ns, p_pid, p_name, p_id, 1, p_owner, p_grp, p_mode, p_principal, p_request);
        v_new.delta := ROW(p_ns, p_pid, 1, 1, 0);
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

-- Why an element cannot be; NULL: nothing is known against it.
CREATE FUNCTION mantle.mkdir_refusal(
    c mantle.batch_context, ns bigint, pid bigint, name text, id bigint, owner int, grp int, mode int, explicit boolean,
    request uuid)
RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        CASE WHEN ns IS NULL OR ns = ANY (c.missing) THEN 'MT011' END,
        mantle.directory_name_fault(name),
        CASE WHEN (pid >= 1024 AND owner >= 0 AND grp >= 0 AND mode BETWEEN 0 AND 511 AND explicit IS NOT NULL
                   AND request IS NOT NULL) IS NOT TRUE THEN 'MT006'
             WHEN id IS NULL OR id = ANY (c.unrecorded) THEN 'MT040'
             WHEN pid = ANY (c.removed) THEN 'MT018' END)
$$;
COMMENT ON FUNCTION mantle.mkdir_refusal(
    mantle.batch_context, bigint, bigint, text, bigint, int, int, int, boolean, uuid) IS 'Why a directory cannot be made';
REVOKE ALL ON FUNCTION mantle.mkdir_refusal(
    mantle.batch_context, bigint, bigint, text, bigint, int, int, int, boolean, uuid) FROM PUBLIC;

-- The new directories of a batch in one statement, under one snapshot taken after the latches. Left to the loop: what
-- exists, is refused, or was answered before.
CREATE FUNCTION mantle.mkdirs_at_once(
    c mantle.batch_context, p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_owner int[],
    p_grp int[], p_mode int[], p_explicit boolean[], p_user_metadata jsonb[], p_request uuid[], p_hash bigint[],
    OUT made bigint[], OUT changes mantle.directory_change[], OUT deltas mantle.delta[])
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    WITH claimed AS (
        INSERT INTO mantle.requests (ns, principal, request_id, request_hash, verb, pid, id, version)
        SELECT u.ns, u.principal, u.request, coalesce(u.hash, 0), 'mkdir', u.pid, u.id, 1
          FROM unnest(p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_explicit, p_request, p_hash)
               AS u(principal, ns, pid, name, id, owner, grp, mode, explicit, request, hash)
         WHERE u.principal IS NOT NULL
           AND mantle.mkdir_refusal(c, u.ns, u.pid, u.name, u.id, u.owner, u.grp, u.mode, u.explicit, u.request) IS NULL
           AND NOT EXISTS (SELECT FROM mantle.meta m WHERE m.pid = u.pid AND m.name = u.name AND m.ts = 0 OFFSET 0)
           AND NOT EXISTS (SELECT FROM mantle.meta m WHERE m.pid = u.pid AND m.name = left(u.name, -1) AND m.ts = 0 OFFSET 0)
        ON CONFLICT DO NOTHING RETURNING id, principal, request_id),
    made AS (
        INSERT INTO mantle.meta AS m (pid, name, ns, id, owner, grp, mode, version, explicit, user_metadata, created)
        SELECT u.pid, u.name, u.ns, u.id, u.owner, u.grp, u.mode, 1, u.explicit, u.user_metadata, now()
          FROM unnest(p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_explicit, p_user_metadata)
               AS u(ns, pid, name, id, owner, grp, mode, explicit, user_metadata)
         WHERE u.id IN (SELECT q.id FROM claimed AS q)
        RETURNING m.ns, m.pid, m.name, m.id, m.owner, m.grp, m.mode, m.explicit),
    -- For objects that may never come: their PUTs can fail after this.
    queued AS (
        INSERT INTO mantle.prune_queue (id) SELECT d.id FROM made AS d WHERE NOT d.explicit)
    SELECT (SELECT array_agg(d.id) FROM made AS d),
           (SELECT array_agg(ROW(false, d.ns, d.pid, d.name, d.id, 1, d.owner, d.grp, d.mode, q.principal,
                                 q.request_id)::mantle.directory_change) FROM made AS d JOIN claimed AS q ON q.id = d.id),
           (SELECT array_agg(ROW(d.ns, d.pid, d.n, d.n, 0)::mantle.delta)
              FROM (SELECT e.ns, e.pid, count(*) AS n FROM made AS e GROUP BY e.ns, e.pid) AS d)
      INTO made, changes, deltas;
END $$;
COMMENT ON FUNCTION mantle.mkdirs_at_once(
    mantle.batch_context, int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], boolean[], jsonb[], uuid[],
    bigint[]) IS 'Makes the new directories of a batch; answers their ids';
REVOKE ALL ON FUNCTION mantle.mkdirs_at_once(
    mantle.batch_context, int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], boolean[], jsonb[], uuid[],
    bigint[]) FROM PUBLIC;

CREATE FUNCTION mantle.mkdir(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_owner int[], p_grp int[], p_mode int[],
    p_explicit boolean[], p_user_metadata jsonb[], p_request uuid[], p_hash bigint[])
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_fault text;
    c mantle.batch_context;
    e record;
    o mantle.outcome;
    v_made bigint[] := '{}';
    v_changes mantle.directory_change[] := '{}';
    v_deltas mantle.delta[] := '{}';
BEGIN
    -- Assigned, not performed: that is an expression, which costs less than a statement.
    v_fault := coalesce(mantle.batch_fault(cardinality(p_name), ARRAY[
        cardinality(p_principal), cardinality(p_ns), cardinality(p_pid), cardinality(p_id), cardinality(p_owner),
        cardinality(p_grp), cardinality(p_mode), cardinality(p_explicit), cardinality(p_user_metadata),
        cardinality(p_request), cardinality(p_hash)]), mantle.latch_batch(p_pid, p_name));
    IF v_fault IS NOT NULL THEN
        PERFORM mantle.fault(v_fault);
    END IF;
    IF cardinality(p_name) = 1 AND mantle.mkdir_new(
            p_principal[1], p_ns[1], p_pid[1], p_name[1], p_id[1], p_owner[1], p_grp[1], p_mode[1], p_explicit[1],
            p_user_metadata[1], p_request[1], p_hash[1]) THEN
        ord := 1; id := p_id[1]; version := 1; replayed := false;
        RETURN NEXT;
        RETURN;
    END IF;
    c := mantle.batch_context(p_principal, p_ns, p_pid, p_id, p_request);
    IF mantle.is_set(p_pid, p_name, p_request, p_id) THEN
        SELECT coalesce(a.made, '{}'), coalesce(a.changes, '{}'), coalesce(a.deltas, '{}') INTO v_made, v_changes, v_deltas
          FROM mantle.mkdirs_at_once(c, p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_explicit,
                                     p_user_metadata, p_request, p_hash) AS a;
        RETURN QUERY SELECT u.n::int, NULL::text, u.id, 1::bigint, false, NULL::pg_lsn
                       FROM unnest(p_id) WITH ORDINALITY AS u(id, n) WHERE u.id IN (SELECT unnest(v_made));
    END IF;
    FOR e IN
        SELECT u.*, mantle.mkdir_refusal(c, u.ns, u.pid, u.name, u.id, u.owner, u.grp, u.mode, u.explicit, u.request) AS refusal
          FROM unnest(p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_explicit, p_user_metadata, p_request,
                      p_hash)
               WITH ORDINALITY AS u(principal, ns, pid, name, id, owner, grp, mode, explicit, user_metadata, request, hash, n)
         WHERE v_made = '{}' OR (u.id IN (SELECT unnest(v_made))) IS NOT TRUE
         ORDER BY u.pid, u.name COLLATE "C", u.n
    LOOP
        o := NULL;
        IF e.request = ANY (c.known) THEN
            o := mantle.recall(e.principal, e.ns, e.request, e.hash);
        END IF;
        IF o IS NULL AND e.refusal IS NULL THEN
            o := mantle.mkdir_one(e.principal, e.ns, e.pid, e.name, e.id, e.owner, e.grp, e.mode, e.explicit,
                                  e.user_metadata, e.request, e.hash);
        ELSIF o IS NULL THEN
            o.code := e.refusal;
        END IF;
        IF (o.change).id IS NOT NULL THEN v_changes := v_changes || o.change; END IF;
        IF (o.delta).pid IS NOT NULL THEN v_deltas := v_deltas || o.delta; END IF;
        ord := e.n; code := o.code; id := o.id; version := o.version;
        replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.finish(0, v_changes, v_deltas);
END $$;
COMMENT ON FUNCTION mantle.mkdir(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], boolean[], jsonb[], uuid[], bigint[]) IS
    'Makes directories. Names end in a slash. MT012 with the id when one exists; an explicit mkdir of an implicit one succeeds';
REVOKE ALL ON FUNCTION mantle.mkdir(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], boolean[], jsonb[], uuid[], bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.mkdir(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], boolean[], jsonb[], uuid[], bigint[]) TO mantle_gateway;
