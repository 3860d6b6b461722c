--- gateway: Gives a part of an upload, in any state, other extents, of the same bytes elsewhere; answers the locators that the part
--- names no more. {source_changed} if the part has other locators by now
-- So the bytes of a manifest move once, however many objects name it. Nothing else of the part changes. Other parts may be
-- copies of its old bytes, so the caller asks (mantle.unused_locators) before it removes them; those in volumes are compared
-- by the gateway that has their segment. Who copies a part of an object holds the rows (mantle.hold_extents_delegated): it
-- names the old bytes before they are looked for, or is refused (P52).
CREATE FUNCTION mantle.replace_extents_delegated(
    p_upload bigint, p_part int, p_old text[], p_locator text[], p_start bigint[], p_length bigint[], OUT code text,
    OUT old_locators text[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {delegated} AS $$
DECLARE
    v_first mantle.extents;
    v_named text[];
    v_size bigint;
BEGIN
    PERFORM mantle.raise_fault(mantle.latch_entries('{}', '{}', ARRAY[p_upload]));
    PERFORM mantle.raise_fault(mantle.latch_segments(p_locator));
    SELECT * INTO v_first FROM mantle.extents e WHERE e.upload = p_upload AND e.part = p_part AND e.extent = 0;
    SELECT array_agg(e.locator ORDER BY e.extent), sum(e.length) INTO v_named, v_size
      FROM mantle.extents e WHERE e.upload = p_upload AND e.part = p_part;
    code := coalesce(
        CASE WHEN (cardinality(p_locator) > 0 AND cardinality(p_start) = cardinality(p_locator)
                   AND cardinality(p_length) = cardinality(p_locator) AND 0 <= ALL (p_start) AND 0 <= ALL (p_length)
                   AND array_position(p_locator, NULL) IS NULL
                   AND (SELECT max(octet_length(l)) FROM unnest(p_locator) AS l) <= {LOCATOR_BYTES_MAX})
                  IS NOT TRUE THEN '{invalid_argument}' END,
        CASE WHEN v_named IS DISTINCT FROM p_old THEN '{source_changed}'
             WHEN v_size <> (SELECT sum(l) FROM unnest(p_length) AS l) THEN '{invalid_argument}' END,
        (SELECT min(mantle.segment_fault(l)) FROM unnest(p_locator) AS l));
    IF code IS NULL THEN
        DELETE FROM mantle.extents e WHERE e.upload = p_upload AND e.part = p_part;
        INSERT INTO mantle.extents (upload, part, extent, locator, start, length, copied, position, etag, checksum,
                                    created)
        SELECT p_upload, p_part, u.n - 1, u.locator, u.start, u.length, false,
               v_first.position + sum(u.length) OVER (ORDER BY u.n) - u.length, CASE u.n WHEN 1 THEN v_first.etag END,
               CASE u.n WHEN 1 THEN v_first.checksum END, CASE u.n WHEN 1 THEN v_first.created END
          FROM unnest(p_locator, p_start, p_length) WITH ORDINALITY AS u(locator, start, length, n);
        old_locators := ARRAY(SELECT DISTINCT u.locator FROM unnest(v_named) AS u(locator)
                               WHERE NOT u.locator {in_volume} AND u.locator <> ALL (p_locator) ORDER BY u.locator);
        PERFORM mantle.free_bytes(ARRAY(SELECT u.locator FROM unnest(v_named) AS u(locator)
                                         WHERE u.locator <> ALL (p_locator)), true);
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_upload]));
END $$;
