--- gateway: Ends an open upload without an object; answers the locators of its bytes, which nothing names any more
CREATE FUNCTION mantle.abort_upload_delegated(
    p_upload bigint, p_caller text DEFAULT NULL, OUT code text, OUT old_locators text[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
DECLARE
    u mantle.uploads;
    v_left text[];
BEGIN
    PERFORM mantle.raise_fault(mantle.latch_entries('{}', '{}', ARRAY[p_upload]));
    SELECT * INTO u FROM mantle.uploads o WHERE o.id = p_upload;
    code := coalesce(
        mantle.upload_fault(p_caller, u.principal, (SELECT n.owner FROM mantle.namespaces n WHERE n.ns = u.ns)),
        CASE u.state WHEN 'open' THEN NULL WHEN 'sealed' THEN '{upload_busy}' ELSE '{no_such_upload}' END);
    IF code IS NULL THEN
        v_left := ARRAY(SELECT e.locator FROM mantle.extents e WHERE e.upload = p_upload AND NOT e.copied);
        old_locators := mantle.freed_or_left(v_left, '{}');
        v_left := ARRAY(SELECT e.locator FROM mantle.extents e WHERE e.upload = p_upload AND e.copied);
        PERFORM mantle.free_bytes(v_left, true);
        DELETE FROM mantle.extents e WHERE e.upload = p_upload;
        DELETE FROM mantle.uploads o WHERE o.id = p_upload;
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_upload]));
END $$;

--- gateway: Removes the manifest of an object that no row names any more; answers locators that other manifests and objects
--- may still name
-- Locators in volumes are not returned: the gateway that has their segment frees what no row names (P60). A reader
-- that began before the object was removed has p_read_grace_ms from the first call to finish. The upload's row stays as
-- long as answers to requests, because CompleteMultipartUpload may be repeated.
CREATE FUNCTION mantle.drop_manifest_delegated(p_upload bigint, p_read_grace_ms bigint) RETURNS text[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
DECLARE
    u mantle.uploads;
    v_locators text[] := '{}';
    v_freed text[];
BEGIN
    PERFORM mantle.raise_fault(mantle.latch_entries('{}', '{}', ARRAY[p_upload]));
    SELECT * INTO u FROM mantle.uploads o WHERE o.id = p_upload AND o.state = 'done';
    IF u.unused IS NULL THEN
        -- If it was not an upload, its object may still be about to be put (mantle.create_manifest_delegated).
        UPDATE mantle.uploads o SET unused = now()
         WHERE o.id = u.id
           AND (u.key <> '' OR u.changed < now() - {TOMBSTONE_RETENTION_MIN_S} * interval '1 second');
    ELSIF u.unused <= now() - p_read_grace_ms * interval '1 millisecond' THEN
        v_locators := ARRAY(
            SELECT e.locator FROM mantle.extents e WHERE e.upload = p_upload AND NOT e.locator {in_volume});
        v_freed := ARRAY(SELECT e.locator FROM mantle.extents e WHERE e.upload = p_upload AND e.locator {in_volume});
        PERFORM mantle.free_bytes(v_freed, true);
        DELETE FROM mantle.extents e WHERE e.upload = p_upload;
        IF u.changed < now() - current_setting('mantle.request_retention_s')::int * interval '1 second' THEN
            DELETE FROM mantle.uploads o WHERE o.id = p_upload;
        END IF;
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_upload]));
    RETURN v_locators;
END $$;
