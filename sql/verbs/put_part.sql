--- gateway: Records a part of an upload, whose bytes are stored; answers the locators of bytes that it replaces
-- Parts of one number come one after the other, and none comes while the upload is sealed or later (P53). p_caller may use
-- the upload, or {access_denied}.
CREATE FUNCTION mantle.put_part_delegated(
    p_upload bigint, p_ns bigint, p_part int, p_etag text, p_checksum text, p_locator text[], p_start bigint[],
    p_length bigint[], p_copied boolean, p_lease text, p_caller text DEFAULT NULL, OUT code text,
    OUT old_locators text[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
DECLARE
    v_state text;
    v_principal int;
    v_left text[];
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM mantle.raise_fault(mantle.latch_entries(ARRAY[p_upload], ARRAY[p_part::text], NULL));
    -- Copied bytes are already in use, whatever the epoch under which they were written.
    IF NOT p_copied THEN
        PERFORM mantle.raise_fault(mantle.latch_segments(p_locator));
    END IF;
    SELECT u.state, u.principal INTO v_state, v_principal FROM mantle.uploads u WHERE u.id = p_upload AND u.ns = p_ns;
    code := coalesce(
        mantle.namespace_fault(p_ns), mantle.lease_fault(p_ns, p_lease),
        mantle.upload_fault(p_caller, v_principal, (SELECT n.owner FROM mantle.namespaces n WHERE n.ns = p_ns)),
        CASE WHEN (p_part BETWEEN 1 AND 10000 AND p_etag IS NOT NULL AND p_copied IS NOT NULL
                   AND cardinality(p_locator) > 0 AND cardinality(p_start) = cardinality(p_locator)
                   AND cardinality(p_length) = cardinality(p_locator)) IS NOT TRUE THEN '{invalid_argument}'
             WHEN v_state IS NULL OR v_state = 'done' THEN '{no_such_upload}'
             WHEN v_state = 'sealed' THEN '{upload_busy}'
             WHEN NOT p_copied THEN (SELECT min(mantle.segment_fault(l)) FROM unnest(p_locator) AS l) END);
    IF code IS NULL THEN
        -- The statement may be sent again after its connection broke: then its own part is there.
        v_left := ARRAY(SELECT e.locator FROM mantle.extents e
                         WHERE e.upload = p_upload AND e.part = p_part AND NOT e.copied
                           AND e.locator <> ALL (p_locator));
        old_locators := mantle.freed_or_left(v_left, p_locator);
        v_left := ARRAY(SELECT e.locator FROM mantle.extents e
                         WHERE e.upload = p_upload AND e.part = p_part AND e.copied AND e.locator <> ALL (p_locator));
        PERFORM mantle.free_bytes(v_left, true);
        DELETE FROM mantle.extents e WHERE e.upload = p_upload AND e.part = p_part;
        INSERT INTO mantle.extents (upload, part, extent, locator, start, length, copied, etag, checksum, created)
        SELECT p_upload, p_part, n - 1, u.locator, u.start, u.length, p_copied,
               CASE n WHEN 1 THEN p_etag END, CASE n WHEN 1 THEN p_checksum END, CASE n WHEN 1 THEN v_now END
          FROM unnest(p_locator, p_start, p_length) WITH ORDINALITY AS u(locator, start, length, n);
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_upload]));
END $$;

--- Keeps the extents of a manifest as they are until the commit; false if it has not all of these locators
CREATE FUNCTION mantle.hold_extents_delegated(p_upload bigint, p_locator text[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE {delegated} AS $$
DECLARE v_found text[];
BEGIN
    PERFORM FROM mantle.extents e WHERE e.upload = p_upload AND e.locator = ANY (p_locator) FOR SHARE;
    -- Waiting for a lock may have been waiting for another locator.
    v_found := ARRAY(SELECT e.locator FROM mantle.extents e WHERE e.upload = p_upload AND e.locator = ANY (p_locator));
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_upload]));
    RETURN NOT EXISTS (SELECT unnest(p_locator) EXCEPT SELECT unnest(v_found));
END $$;

--- gateway: Records a part of an upload that uses the bytes of an object; {source_changed} if that is not the one that was
--- read, or has other bytes by now
-- p_caller may find the source in its directory, and read it. The source stays latched until the commit, and is marked as shared, so no sweeper misses both (P52).
-- Its bytes may have been moved since the caller read where they are, without a new version.
CREATE FUNCTION mantle.copy_part(
    p_src_pid bigint, p_src_name text, p_src_id bigint, p_src_version bigint, p_upload bigint, p_ns bigint, p_part int,
    p_etag text, p_checksum text, p_locator text[], p_start bigint[], p_length bigint[], p_lease text, p_caller text DEFAULT NULL,
    p_src_parent text DEFAULT NULL, OUT code text, OUT old_locators text[])
LANGUAGE plpgsql VOLATILE {as_change} AS $$
DECLARE
    s mantle.place_state;
    -- Citus sends plain variables only.
    v_part text := p_part;
    v_copied boolean := true;
    v_manifest bigint;
    v_held boolean;
    v_placements bigint := mantle.placements();
BEGIN
    PERFORM mantle.latch_across_nodes(ARRAY[p_src_pid, p_upload], ARRAY[p_src_name, v_part], '{}', NULL);
    SELECT * INTO s FROM mantle.read_place_delegated(p_src_pid, p_src_name, NULL, NULL);
    IF p_caller IS NOT NULL THEN
        code := mantle.reading_fault(0, p_caller, coalesce(s.permission, p_src_parent), (s.entry).owner, (s.entry).grp,
                                     (s.entry).mode);
        IF code IS NOT NULL THEN
            RETURN;
        END IF;
    END IF;
    IF ((s.entry).id, (s.entry).version) IS DISTINCT FROM (p_src_id, p_src_version) THEN
        code := '{source_changed}';
        RETURN;
    END IF;
    v_manifest := mantle.manifest_id((s.entry).locator);
    IF v_manifest IS NULL THEN
        v_held := (s.entry).locator = ALL (p_locator);
    ELSE
        SELECT h INTO v_held FROM mantle.hold_extents_delegated(v_manifest, p_locator) AS h;
    END IF;
    IF v_held IS NOT TRUE THEN
        code := '{source_changed}';
        RETURN;
    END IF;
    SELECT p.code, p.old_locators INTO code, old_locators FROM mantle.put_part_delegated(
        p_upload, p_ns, p_part, p_etag, p_checksum, p_locator, p_start, p_length, v_copied, p_lease, p_caller) AS p;
    IF code IS NULL AND (s.entry).shared IS NOT TRUE THEN
        PERFORM FROM mantle.share_object_delegated(p_src_pid, p_src_name);
    END IF;
    PERFORM mantle.raise_fault(mantle.placements_fault(v_placements));
END $$;
