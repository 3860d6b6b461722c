--- gateway: The locators of bytes in a segment that objects and parts of uploads name: after a given one, in byte order,
--- up to a limit
-- For a gateway that reads its volume again to find damage. It says nothing of free blocks, so it needs no lease, and
-- unlike mantle.segment_locators it waits for nobody. An object that moves to another node meanwhile may be missing.
-- Who finds damage asks again whether the locator is still named (mantle.unused_locators).
CREATE FUNCTION mantle.named_locators(p_volume int, p_segment int, p_after text, p_limit int)
RETURNS TABLE (locator text)
LANGUAGE plpgsql STABLE {as_owner} SET enable_seqscan = off AS $$
DECLARE
    v_begin text := format('v1:%s.%s.', p_volume, p_segment);
    -- A slash is the character after a dot.
    v_below text := format('v1:%s.%s/', p_volume, p_segment);
    v_after text := greatest(p_after COLLATE "C", v_begin COLLATE "C");
    v_named text[];
BEGIN
    PERFORM mantle.raise_fault(
                CASE WHEN (p_volume > 0 AND p_segment >= 0 AND p_limit BETWEEN 1 AND 100000) IS NOT TRUE
                     THEN '{invalid_argument}' END);
    v_named := ARRAY(SELECT DISTINCT m.locator FROM mantle.meta m WHERE m.locator > v_after AND m.locator < v_below
                      ORDER BY m.locator LIMIT p_limit);
    v_named := v_named
        || ARRAY(SELECT DISTINCT e.locator FROM mantle.extents e WHERE e.locator > v_after AND e.locator < v_below
                  ORDER BY e.locator LIMIT p_limit);
    RETURN QUERY
    SELECT n.locator FROM (SELECT DISTINCT u COLLATE "C" FROM unnest(v_named) AS u) AS n(locator)
     ORDER BY n.locator LIMIT p_limit;
END $$;
