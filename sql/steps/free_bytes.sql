-- How bytes in volumes are freed (P60). When a row is removed that alone can name its bytes, the same transaction
-- writes a freed row. For bytes that other rows may name, it writes one that says so: the gateway that has the segment compares
-- it with all rows (mantle.segment_locators), and frees the bytes when none names them (mantle.settle_shared_delegated).

--- Whether two locators are of one write. If a gateway repeats a call after its segment was leased again, it names the
--- same bytes under another epoch
CREATE FUNCTION mantle.are_of_one_write(p_locator text, p_other text) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN p_locator {in_volume} AND p_other {in_volume}
    AND split_part(p_locator, '/', 2) = split_part(p_other, '/', 2);

--- Frees the bytes of those locators that are in volumes. p_shared: other rows may name them; else none does
-- If there already is a freed row, the blocks are still freed only once.
CREATE FUNCTION mantle.free_bytes(p_locators text[], p_shared boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO mantle.freed (locator, shared_by, volume, segment)
    SELECT u.locator, CASE WHEN p_shared THEN pg_current_xact_id() ELSE '0' END, mantle.locator_volume(u.locator),
           mantle.locator_segment(u.locator)
      FROM unnest(p_locators) AS u(locator) WHERE mantle.locator_volume(u.locator) IS NOT NULL
    ON CONFLICT DO NOTHING;
END $$;

--- Frees the bytes of those locators that are in volumes, and returns the other locators, whose bytes the caller removes
-- `p_kept`: locators that replace them. Bytes of the same write stay.
CREATE FUNCTION mantle.freed_or_left(p_locators text[], p_kept text[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE v_left text[] := ARRAY(SELECT u.locator FROM unnest(p_locators) AS u(locator) WHERE NOT u.locator {in_volume});
BEGIN
    IF cardinality(v_left) < cardinality(p_locators) THEN
        PERFORM mantle.free_bytes(ARRAY(
                    SELECT u.locator FROM unnest(p_locators) AS u(locator)
                     WHERE NOT EXISTS (SELECT FROM unnest(p_kept) AS k WHERE mantle.are_of_one_write(u.locator, k))));
    END IF;
    RETURN v_left;
END $$;
