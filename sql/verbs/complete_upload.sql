-- The end of a multipart upload. Its object is made by mantle.put_object, in a directory that may be on another node, and
-- no two-phase commit joins the two (P53): the upload is sealed first, so that its extents cannot change any more, then the
-- object is put under a request id that follows from upload and attempt, then the upload is done. After a crash between
-- two steps, mantle.fence_request_delegated finds out whether the object was put, and keeps it from being put later.

--- gateway: Chooses the parts of an upload, which then takes no more; repeated, answers what was chosen
-- {invalid_part}: a part is not there or has another etag. {upload_busy}: other parts were chosen and the object is being
-- made. `destination` may be another directory than the given one: that of an attempt which has not come to its end.
CREATE FUNCTION mantle.seal_upload_delegated(
    p_upload bigint, p_ns bigint, p_parts int[], p_etags text[], p_list_hash bigint, p_destination bigint, p_etag text,
    p_size bigint, p_checksum text, p_caller text DEFAULT NULL, OUT code text, OUT state text, OUT attempt int,
    OUT destination bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
#variable_conflict use_column
DECLARE
    u mantle.uploads;
    v_found bigint;
    v_size bigint;
BEGIN
    PERFORM mantle.raise_fault(mantle.latch_entries('{}', '{}', ARRAY[p_upload]));
    SELECT * INTO u FROM mantle.uploads o WHERE o.id = p_upload AND o.ns = p_ns;
    code := mantle.upload_fault(p_caller, u.principal, (SELECT n.owner FROM mantle.namespaces n WHERE n.ns = p_ns));
    IF code IS NOT NULL THEN
        RETURN;
    END IF;
    IF u.state = 'open' THEN
        SELECT count(*) INTO v_found
          FROM mantle.extents e JOIN unnest(p_parts, p_etags) AS l(part, etag) ON l.part = e.part AND l.etag = e.etag
         WHERE e.upload = p_upload AND e.extent = 0;
        SELECT sum(e.length) INTO v_size FROM mantle.extents e WHERE e.upload = p_upload AND e.part = ANY (p_parts);
        code := CASE WHEN (v_found = cardinality(p_parts) AND v_found = cardinality(p_etags) AND v_size = p_size)
                          IS NOT TRUE THEN '{invalid_part}' END;
        IF code IS NULL THEN
            UPDATE mantle.extents e SET position = p.position
              FROM (SELECT c.part, c.extent,
                           sum(c.length) OVER (ORDER BY c.part, c.extent) - c.length AS position
                      FROM mantle.extents c WHERE c.upload = p_upload AND c.part = ANY (p_parts)) AS p
             WHERE e.upload = p_upload AND e.part = p.part AND e.extent = p.extent;
            UPDATE mantle.uploads o
               SET state = 'sealed', list_hash = p_list_hash, destination = p_destination, etag = p_etag, size = p_size,
                   checksum = p_checksum, changed = now()
             WHERE o.id = p_upload;
            u.state := 'sealed'; u.destination := p_destination;
        END IF;
    ELSE
        code := CASE WHEN u.id IS NULL THEN '{no_such_upload}'
                     WHEN u.list_hash IS NOT DISTINCT FROM p_list_hash THEN NULL
                     WHEN u.state = 'done' THEN '{no_such_upload}'
                     ELSE '{upload_busy}' END;
    END IF;
    state := u.state; attempt := u.attempt; destination := u.destination;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_upload]));
END $$;

--- gateway: Makes sure that a request changes nothing in a directory any more; true if it already has
-- The answer to the request is recorded before its change commits, so a request that is under way is waited for, and one
-- that comes later is refused.
CREATE FUNCTION mantle.fence_request_delegated(p_pid bigint, p_ns bigint, p_principal int, p_request uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_verb text := 'fence';
BEGIN
    PERFORM mantle.raise_fault(mantle.mutation_fault_code());
    INSERT INTO mantle.requests (ns, principal, request_id, request_hash, verb, pid, created)
    VALUES (p_ns, p_principal, p_request, 0, v_verb, p_pid, v_now) ON CONFLICT DO NOTHING;
    IF NOT FOUND AND mantle.is_distributed() THEN
        SELECT r.verb INTO v_verb FROM mantle.requests r
         WHERE r.pid = p_pid AND r.ns = p_ns AND r.principal = p_principal AND r.request_id = p_request;
    ELSIF NOT FOUND THEN
        SELECT r.verb INTO v_verb FROM mantle.requests r
         WHERE r.ns = p_ns AND r.principal = p_principal AND r.request_id = p_request;
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_pid]));
    RETURN v_verb <> 'fence';
END $$;

--- gateway: Ends an attempt whose object was not put and, after mantle.fence_request_delegated, never will be; the upload
--- takes parts again
CREATE FUNCTION mantle.unseal_upload_delegated(p_upload bigint, p_attempt int) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
BEGIN
    PERFORM mantle.raise_fault(mantle.latch_entries('{}', '{}', ARRAY[p_upload]));
    UPDATE mantle.uploads u
       SET state = 'open', attempt = p_attempt + 1, list_hash = NULL, destination = NULL, etag = NULL, size = NULL,
           checksum = NULL, changed = now()
     WHERE u.id = p_upload AND u.state = 'sealed' AND u.attempt = p_attempt;
    IF FOUND THEN
        UPDATE mantle.extents e SET position = NULL WHERE e.upload = p_upload AND e.position IS NOT NULL;
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_upload]));
END $$;

--- gateway: Ends an upload whose object was put; answers the locators of parts that were not chosen
CREATE FUNCTION mantle.finish_upload_delegated(p_upload bigint, p_attempt int) RETURNS text[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
DECLARE
    v_locators text[] := '{}';
    v_copied text[];
BEGIN
    PERFORM mantle.raise_fault(mantle.latch_entries('{}', '{}', ARRAY[p_upload]));
    UPDATE mantle.uploads u SET state = 'done', changed = now()
     WHERE u.id = p_upload AND u.state = 'sealed' AND u.attempt = p_attempt;
    IF FOUND THEN
        v_locators := ARRAY(SELECT e.locator FROM mantle.extents e
                             WHERE e.upload = p_upload AND e.position IS NULL AND NOT e.copied);
        v_locators := mantle.freed_or_left(v_locators, '{}');
        v_copied := ARRAY(SELECT e.locator FROM mantle.extents e
                           WHERE e.upload = p_upload AND e.position IS NULL AND e.copied);
        PERFORM mantle.free_bytes(v_copied, true);
        DELETE FROM mantle.extents e WHERE e.upload = p_upload AND e.position IS NULL;
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_upload]));
    RETURN v_locators;
END $$;
