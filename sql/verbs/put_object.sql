-- Creates or overwrites objects. A single new one has a short way; new ones of a batch are made at once, in sets, as far as
-- they are unrelated and nothing speaks against them; all else goes one by one. All ways are latched alike: pids shared,
-- names exclusively, so what is read of an entry here stays until the commit.

CREATE FUNCTION mantle.put_new_object(
    p_principal int, p_ns bigint, p_pid bigint, p_name text, p_id bigint, p_owner int, p_grp int, p_mode int, p_size bigint,
    p_etag text, p_content_type text, p_user_metadata jsonb, p_locator text, p_condition text, p_request uuid, p_hash bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF (p_pid >= 1024 AND p_owner >= 0 AND p_grp >= 0 AND p_mode BETWEEN 0 AND 511 AND p_size >= 0 AND p_request IS NOT NULL
        AND p_principal IS NOT NULL AND coalesce(p_condition, '*absent') = '*absent'
        AND mantle.object_name_fault(p_name) IS NULL AND mantle.is_free(p_ns, p_pid, p_name, p_id)) IS NOT TRUE THEN
        RETURN false;
    END IF;
    INSERT INTO mantle.requests (ns, principal, request_id, request_hash, verb, pid, id, version)
    VALUES (p_ns, p_principal, p_request, coalesce(p_hash, 0), 'put_object', p_pid, p_id, 1)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, size, synthetic, etag, content_type,
                             user_metadata, locator, created, modified)
    VALUES (p_pid, p_name, p_ns, p_id, p_owner, p_grp, p_mode, 1, p_size, false, p_etag, p_content_type,
            p_user_metadata, p_locator, now(), now());
    PERFORM mantle.add_counts(p_ns, p_pid, 1, 0, p_size);
    RETURN true;
END $$;
COMMENT ON FUNCTION mantle.put_new_object(
    int, bigint, bigint, text, bigint, int, int, int, bigint, text, text, jsonb, text, text, uuid, bigint) IS
    'Makes one new object; false: nothing done, take the way for all cases';
REVOKE ALL ON FUNCTION mantle.put_new_object(
    int, bigint, bigint, text, bigint, int, int, int, bigint, text, text, jsonb, text, text, uuid, bigint) FROM PUBLIC;

-- One object. The old size comes from a statement of its own (PROTOCOLS 13).
CREATE FUNCTION mantle.put_object_one(
    p_principal int, p_ns bigint, p_pid bigint, p_name text, p_id bigint, p_owner int, p_grp int, p_mode int, p_size bigint,
    p_etag text, p_content_type text, p_user_metadata jsonb, p_locator text, p_condition text, p_request uuid, p_hash bigint)
RETURNS mantle.outcome LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_old mantle.meta;
    v_new mantle.outcome;
BEGIN
    SELECT * INTO v_old FROM mantle.meta m WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0 FOR UPDATE;
    IF v_old.id IS NULL AND EXISTS (SELECT FROM mantle.meta m WHERE m.pid = p_pid AND m.name = p_name || '/' AND m.ts = 0) THEN
        v_new.code := 'MT015';
    ELSIF (CASE p_condition WHEN '*absent' THEN v_old.id IS NULL WHEN '*present' THEN v_old.id IS NOT NULL
                            ELSE p_condition IS NULL OR p_condition IS NOT DISTINCT FROM v_old.etag END) IS NOT TRUE THEN
        v_new.code := 'MT019';
    END IF;
    IF v_new.code IS NOT NULL THEN
        RETURN v_new;
    END IF;
    v_new.id := coalesce(v_old.id, p_id);
    v_new.version := coalesce(v_old.version, 0) + 1;
    IF NOT mantle.claim(p_principal, p_ns, p_request, p_hash, 'put_object', p_pid, v_new.id, v_new.version) THEN
        RETURN mantle.recall(p_principal, p_ns, p_request, p_hash);
    END IF;
    IF v_old.id IS NULL THEN
        INSERT INTO mantle.meta (pid, name, ns, id, owner, grp, mode, version, size, synthetic, etag, content_type,
                                 user_metadata, locator, created, modified)
        VALUES (p_pid, p_name, p_ns, p_id, p_owner, p_grp, p_mode, 1, p_size, false, p_etag, p_content_type,
                p_user_metadata, p_locator, now(), now());
    ELSE
        UPDATE mantle.meta m
           SET owner = p_owner, grp = p_grp, mode = p_mode, version = v_new.version, size = p_size, synthetic = false,
               etag = p_etag, content_type = p_content_type, user_metadata = p_user_metadata, locator = p_locator,
               modified = now()
         WHERE m.pid = p_pid AND m.name = p_name AND m.ts = 0;
        v_new.old_locator := v_old.locator;
    END IF;
    v_new.delta := ROW(p_ns, p_pid, (v_old.id IS NULL)::int, 0, p_size - coalesce(v_old.size, 0));
    v_new.replayed := false;
    RETURN v_new;
END $$;
COMMENT ON FUNCTION mantle.put_object_one(
    int, bigint, bigint, text, bigint, int, int, int, bigint, text, text, jsonb, text, text, uuid, bigint) IS
    'Creates or overwrites one object of a batch';
REVOKE ALL ON FUNCTION mantle.put_object_one(
    int, bigint, bigint, text, bigint, int, int, int, bigint, text, text, jsonb, text, text, uuid, bigint) FROM PUBLIC;

-- Why an element cannot be; NULL: nothing is known against it.
CREATE FUNCTION mantle.put_object_refusal(
    c mantle.batch_context, ns bigint, pid bigint, name text, id bigint, owner int, grp int, mode int, size bigint, request uuid)
RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        CASE WHEN ns IS NULL OR ns = ANY (c.missing) THEN 'MT011' END,
        mantle.object_name_fault(name),
        CASE WHEN (pid >= 1024 AND owner >= 0 AND grp >= 0 AND mode BETWEEN 0 AND 511 AND size >= 0
                   AND request IS NOT NULL) IS NOT TRUE THEN 'MT006'
             WHEN id IS NULL OR id = ANY (c.unrecorded) THEN 'MT040'
             WHEN pid = ANY (c.removed) THEN 'MT018' END)
$$;
COMMENT ON FUNCTION mantle.put_object_refusal(
    mantle.batch_context, bigint, bigint, text, bigint, int, int, int, bigint, uuid) IS 'Why an object cannot be put';
REVOKE ALL ON FUNCTION mantle.put_object_refusal(
    mantle.batch_context, bigint, bigint, text, bigint, int, int, int, bigint, uuid) FROM PUBLIC;

-- The new objects of a batch in one statement, under one snapshot taken after the latches. Left to the loop: what exists,
-- is refused, or was answered before.
CREATE FUNCTION mantle.put_objects_at_once(
    c mantle.batch_context, p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_owner int[],
    p_grp int[], p_mode int[], p_size bigint[], p_etag text[], p_content_type text[], p_user_metadata jsonb[],
    p_locator text[], p_condition text[], p_request uuid[], p_hash bigint[], OUT made bigint[], OUT deltas mantle.delta[])
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    WITH claimed AS (
        INSERT INTO mantle.requests (ns, principal, request_id, request_hash, verb, pid, id, version)
        SELECT u.ns, u.principal, u.request, coalesce(u.hash, 0), 'put_object', u.pid, u.id, 1
          FROM unnest(p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_size, p_condition, p_request, p_hash)
               AS u(principal, ns, pid, name, id, owner, grp, mode, size, condition, request, hash)
         WHERE (u.condition IS NULL OR u.condition = '*absent') AND u.principal IS NOT NULL
           AND mantle.put_object_refusal(c, u.ns, u.pid, u.name, u.id, u.owner, u.grp, u.mode, u.size, u.request) IS NULL
           AND NOT EXISTS (SELECT FROM mantle.meta m WHERE m.pid = u.pid AND m.name = u.name AND m.ts = 0 OFFSET 0)
           AND NOT EXISTS (SELECT FROM mantle.meta m WHERE m.pid = u.pid AND m.name = u.name || '/' AND m.ts = 0 OFFSET 0)
        ON CONFLICT DO NOTHING RETURNING id),
    made AS (
        INSERT INTO mantle.meta AS m (pid, name, ns, id, owner, grp, mode, version, size, synthetic, etag, content_type,
                                      user_metadata, locator, created, modified)
        SELECT u.pid, u.name, u.ns, u.id, u.owner, u.grp, u.mode, 1, u.size, false, u.etag, u.content_type, u.user_metadata,
               u.locator, now(), now()
          FROM unnest(p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_size, p_etag, p_content_type, p_user_metadata, p_locator)
               AS u(ns, pid, name, id, owner, grp, mode, size, etag, content_type, user_metadata, locator)
         WHERE u.id IN (SELECT q.id FROM claimed AS q)
        RETURNING m.ns, m.pid, m.id, m.size)
    SELECT (SELECT array_agg(d.id) FROM made AS d),
           (SELECT array_agg(ROW(d.ns, d.pid, d.entries, 0, d.bytes)::mantle.delta)
              FROM (SELECT e.ns, e.pid, count(*) AS entries, sum(e.size) AS bytes FROM made AS e GROUP BY e.ns, e.pid) AS d)
      INTO made, deltas;
END $$;
COMMENT ON FUNCTION mantle.put_objects_at_once(
    mantle.batch_context, int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], bigint[], text[], text[], jsonb[],
    text[], text[], uuid[], bigint[]) IS 'Makes the new objects of a batch; answers their ids';
REVOKE ALL ON FUNCTION mantle.put_objects_at_once(
    mantle.batch_context, int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], bigint[], text[], text[], jsonb[],
    text[], text[], uuid[], bigint[]) FROM PUBLIC;

CREATE FUNCTION mantle.put_object(
    p_principal int[], p_ns bigint[], p_pid bigint[], p_name text[], p_id bigint[], p_owner int[], p_grp int[], p_mode int[],
    p_size bigint[], p_etag text[], p_content_type text[], p_user_metadata jsonb[], p_locator text[], p_condition text[],
    p_request uuid[], p_hash bigint[])
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn, old_locator text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_fault text;
    c mantle.batch_context;
    e record;
    o mantle.outcome;
    v_made bigint[] := '{}';
    v_deltas mantle.delta[] := '{}';
BEGIN
    -- Assigned, not performed: that is an expression, which costs less than a statement.
    v_fault := coalesce(mantle.batch_fault(cardinality(p_name), ARRAY[
        cardinality(p_principal), cardinality(p_ns), cardinality(p_pid), cardinality(p_id), cardinality(p_owner),
        cardinality(p_grp), cardinality(p_mode), cardinality(p_size), cardinality(p_etag), cardinality(p_content_type),
        cardinality(p_user_metadata), cardinality(p_locator), cardinality(p_condition), cardinality(p_request),
        cardinality(p_hash)]), mantle.latch_batch(p_pid, p_name));
    IF v_fault IS NOT NULL THEN
        PERFORM mantle.fault(v_fault);
    END IF;
    IF cardinality(p_name) = 1 AND mantle.put_new_object(
            p_principal[1], p_ns[1], p_pid[1], p_name[1], p_id[1], p_owner[1], p_grp[1], p_mode[1], p_size[1], p_etag[1],
            p_content_type[1], p_user_metadata[1], p_locator[1], p_condition[1], p_request[1], p_hash[1]) THEN
        ord := 1; id := p_id[1]; version := 1; replayed := false;
        RETURN NEXT;
        RETURN;
    END IF;
    c := mantle.batch_context(p_principal, p_ns, p_pid, p_id, p_request);
    IF mantle.is_set(p_pid, p_name, p_request, p_id) THEN
        SELECT coalesce(a.made, '{}'), coalesce(a.deltas, '{}') INTO v_made, v_deltas
          FROM mantle.put_objects_at_once(
                   c, p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_size, p_etag, p_content_type,
                   p_user_metadata, p_locator, p_condition, p_request, p_hash) AS a;
        RETURN QUERY SELECT u.n::int, NULL::text, u.id, 1::bigint, false, NULL::pg_lsn, NULL::text
                       FROM unnest(p_id) WITH ORDINALITY AS u(id, n) WHERE u.id IN (SELECT unnest(v_made));
    END IF;
    FOR e IN
        SELECT u.*, mantle.put_object_refusal(c, u.ns, u.pid, u.name, u.id, u.owner, u.grp, u.mode, u.size, u.request) AS refusal
          FROM unnest(p_principal, p_ns, p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_size, p_etag, p_content_type,
                      p_user_metadata, p_locator, p_condition, p_request, p_hash)
               WITH ORDINALITY AS u(principal, ns, pid, name, id, owner, grp, mode, size, etag, content_type, user_metadata,
                                    locator, condition, request, hash, n)
         WHERE v_made = '{}' OR (u.id IN (SELECT unnest(v_made))) IS NOT TRUE
         ORDER BY u.pid, u.name COLLATE "C", u.n
    LOOP
        o := NULL;
        IF e.request = ANY (c.known) THEN
            o := mantle.recall(e.principal, e.ns, e.request, e.hash);
        END IF;
        IF o IS NULL AND e.refusal IS NULL THEN
            o := mantle.put_object_one(
                e.principal, e.ns, e.pid, e.name, e.id, e.owner, e.grp, e.mode, e.size, e.etag, e.content_type,
                e.user_metadata, e.locator, e.condition, e.request, e.hash);
        ELSIF o IS NULL THEN
            o.code := e.refusal;
        END IF;
        IF (o.delta).pid IS NOT NULL THEN v_deltas := v_deltas || o.delta; END IF;
        ord := e.n; code := o.code; id := o.id; version := o.version;
        replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn; old_locator := o.old_locator;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.finish(0, '{}', v_deltas);
END $$;
COMMENT ON FUNCTION mantle.put_object(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], bigint[], text[], text[], jsonb[], text[], text[], uuid[],
    bigint[]) IS
    'Creates or overwrites objects. Condition: NULL, *absent (If-None-Match: *), *present (If-Match: *) or an etag (If-Match)';
REVOKE ALL ON FUNCTION mantle.put_object(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], bigint[], text[], text[], jsonb[], text[], text[], uuid[],
    bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.put_object(
    int[], bigint[], bigint[], text[], bigint[], int[], int[], int[], bigint[], text[], text[], jsonb[], text[], text[], uuid[],
    bigint[]) TO mantle_gateway;
