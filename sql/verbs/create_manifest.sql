--- gateway: Records the bytes of an object that has several locators, as a manifest with a new id
-- It is a finished upload with one part. Then put an object with the locator `manifest:` and the id, under the same
-- lease (P8). Without an object the sweeper removes the manifest, but only after the lease has ended, and any put that
-- had checked the lease (P53). NULL means success, also if the statement was sent again.
CREATE FUNCTION mantle.create_manifest_delegated(
    p_upload bigint, p_ns bigint, p_principal int, p_grp int, p_locator text[], p_start bigint[], p_length bigint[],
    p_lease text, OUT code text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_state text;
BEGIN
    PERFORM mantle.raise_fault(mantle.latch_entries('{}', '{}', ARRAY[p_upload]));
    PERFORM mantle.raise_fault(mantle.latch_segments(p_locator));
    SELECT CASE WHEN u.key = '' THEN 'manifest' ELSE u.state END INTO v_state FROM mantle.uploads u WHERE u.id = p_upload;
    IF v_state = 'manifest' THEN
        RETURN;
    END IF;
    code := coalesce(
        mantle.namespace_fault(p_ns), mantle.lease_fault(p_ns, p_lease),
        CASE WHEN (p_upload >= {ID_MIN} AND p_principal >= 0 AND p_grp >= 0 AND cardinality(p_locator) > 0
                   AND cardinality(p_start) = cardinality(p_locator) AND cardinality(p_length) = cardinality(p_locator)
                   AND array_position(p_locator, NULL) IS NULL AND 0 <= ALL (p_start) AND 0 < ALL (p_length)
                   AND (SELECT max(octet_length(l)) FROM unnest(p_locator) AS l) <= {LOCATOR_BYTES_MAX})
                  IS NOT TRUE OR v_state IS NOT NULL
             THEN '{invalid_argument}' END,
        mantle.id_fault(p_upload),
        (SELECT min(mantle.segment_fault(l)) FROM unnest(p_locator) AS l));
    IF code IS NULL THEN
        INSERT INTO mantle.uploads (id, ns, key, principal, grp, checksum_type, state, changed)
        VALUES (p_upload, p_ns, '', p_principal, p_grp, 'FULL_OBJECT', 'done', v_now);
        INSERT INTO mantle.extents (upload, part, extent, locator, start, length, copied, position, created)
        SELECT p_upload, 1, u.n - 1, u.locator, u.start, u.length, false,
               sum(u.length) OVER (ORDER BY u.n) - u.length, CASE u.n WHEN 1 THEN v_now END
          FROM unnest(p_locator, p_start, p_length) WITH ORDINALITY AS u(locator, start, length, n);
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_upload]));
END $$;
