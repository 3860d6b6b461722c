-- One object. Latched: pid shared, name exclusive. The old size comes from a FOR UPDATE statement of its own (PROTOCOLS 13).
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
    v_new.delta := ROW(p_pid, (v_old.id IS NULL)::int, 0, p_size - coalesce(v_old.size, 0));
    v_new.replayed := false;
    RETURN v_new;
END $$;
COMMENT ON FUNCTION mantle.put_object_one(
    int, bigint, bigint, text, bigint, int, int, int, bigint, text, text, jsonb, text, text, uuid, bigint) IS
    'Creates or overwrites one object of a batch';
REVOKE ALL ON FUNCTION mantle.put_object_one(
    int, bigint, bigint, text, bigint, int, int, int, bigint, text, text, jsonb, text, text, uuid, bigint) FROM PUBLIC;

CREATE FUNCTION mantle.put_object(
    p_principal int, p_ns bigint, p_pid bigint[], p_name text[], p_id bigint[], p_owner int[], p_grp int[], p_mode int[],
    p_size bigint[], p_etag text[], p_content_type text[], p_user_metadata jsonb[], p_locator text[], p_condition text[],
    p_request uuid[], p_hash bigint[])
RETURNS TABLE (ord int, code text, id bigint, version bigint, replayed boolean, flush_lsn pg_lsn, old_locator text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    c mantle.batch_context;
    e record;
    o mantle.outcome;
    v_deltas mantle.delta[] := '{}';
BEGIN
    PERFORM mantle.fault(mantle.batch_fault(cardinality(p_name), ARRAY[
        cardinality(p_pid), cardinality(p_id), cardinality(p_owner), cardinality(p_grp), cardinality(p_mode),
        cardinality(p_size), cardinality(p_etag), cardinality(p_content_type), cardinality(p_user_metadata),
        cardinality(p_locator), cardinality(p_condition), cardinality(p_request), cardinality(p_hash)]));
    PERFORM mantle.fault(mantle.latch_entries(p_pid, p_name));
    c := mantle.batch_context(p_principal, p_ns, p_pid, p_id, p_request);
    FOR e IN
        SELECT u.*, CASE
                 WHEN NOT c.ns_exists THEN 'MT011'
                 WHEN mantle.object_name_fault(u.name) IS NOT NULL THEN mantle.object_name_fault(u.name)
                 WHEN (u.pid >= 1024 AND u.owner >= 0 AND u.grp >= 0 AND u.mode BETWEEN 0 AND 511 AND u.size >= 0
                       AND u.request IS NOT NULL) IS NOT TRUE THEN 'MT006'
                 WHEN u.id IS NULL OR u.id = ANY (c.unrecorded) THEN 'MT040'
                 WHEN u.pid = ANY (c.removed) THEN 'MT018' END AS refusal
          FROM unnest(p_pid, p_name, p_id, p_owner, p_grp, p_mode, p_size, p_etag, p_content_type, p_user_metadata,
                      p_locator, p_condition, p_request, p_hash)
               WITH ORDINALITY AS u(pid, name, id, owner, grp, mode, size, etag, content_type, user_metadata,
                                    locator, condition, request, hash, n)
         ORDER BY u.pid, u.name COLLATE "C", u.n
    LOOP
        o := NULL;
        IF e.request = ANY (c.known) THEN
            o := mantle.recall(p_principal, p_ns, e.request, e.hash);
        ELSIF e.refusal IS NOT NULL THEN
            o.code := e.refusal;
        ELSE
            o := mantle.put_object_one(
                p_principal, p_ns, e.pid, e.name, e.id, e.owner, e.grp, e.mode, e.size, e.etag, e.content_type,
                e.user_metadata, e.locator, e.condition, e.request, e.hash);
        END IF;
        IF (o.delta).pid IS NOT NULL THEN v_deltas := v_deltas || o.delta; END IF;
        ord := e.n; code := o.code; id := o.id; version := o.version;
        replayed := coalesce(o.replayed, false); flush_lsn := o.flush_lsn; old_locator := o.old_locator;
        RETURN NEXT;
    END LOOP;
    PERFORM mantle.finish(p_principal, p_ns, 0, p_ns, '{}', v_deltas);
END $$;
COMMENT ON FUNCTION mantle.put_object(
    int, bigint, bigint[], text[], bigint[], int[], int[], int[], bigint[], text[], text[], jsonb[], text[], text[], uuid[],
    bigint[]) IS
    'Creates or overwrites objects. Condition: NULL, *absent (If-None-Match: *), *present (If-Match: *) or an etag (If-Match)';
REVOKE ALL ON FUNCTION mantle.put_object(
    int, bigint, bigint[], text[], bigint[], int[], int[], int[], bigint[], text[], text[], jsonb[], text[], text[], uuid[],
    bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.put_object(
    int, bigint, bigint[], text[], bigint[], int[], int[], int[], bigint[], text[], text[], jsonb[], text[], text[], uuid[],
    bigint[]) TO mantle_gateway;
