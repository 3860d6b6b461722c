-- No table stores which bytes of a segment are used: the rows that name them decide it (P61).

--- {stale_segment} if the node of p_at does not admit this epoch of a segment
CREATE FUNCTION mantle.admitted_fault_delegated(p_at bigint, p_volume int, p_segment int, p_epoch bigint) RETURNS text
LANGUAGE plpgsql VOLATILE {delegated} AS $$
BEGIN
    RETURN CASE WHEN NOT EXISTS (
        SELECT FROM mantle.admitted_segments a
         WHERE a.volume = p_volume AND a.segment = p_segment AND a.epoch = p_epoch AND a.lineage = mantle.lineage())
        THEN '{stale_segment}' END;
END $$;

--- Locators that have freed rows on the node of p_at, between two locators, in order, up to a limit
CREATE FUNCTION mantle.freed_between_delegated(p_at bigint, p_after text, p_below text, p_limit int) RETURNS text[]
LANGUAGE plpgsql VOLATILE {delegated} AS $$
BEGIN
    RETURN ARRAY(SELECT DISTINCT f.locator FROM mantle.freed f WHERE f.locator > p_after AND f.locator < p_below
                  ORDER BY f.locator LIMIT p_limit);
END $$;

--- gateway: The locators of used bytes in a segment: after a given one, in byte order, up to a limit. `freed`: no row
--- names it any more, and nobody has taken it yet (mantle.take_freed_delegated)
-- {stale_segment} unless every node admits the epoch. So a row that appears after its page was read can only be one of
-- the gateway that has the segment under this epoch. A page is read while no object moves to another node and none is
-- copied (P51), so an object that moves is in the page once. Objects are read before extents (P52), and both before
-- freed rows, which appear when the others are removed. 55P03 if moves do not end soon: call again.
CREATE FUNCTION mantle.segment_locators(p_volume int, p_segment int, p_epoch bigint, p_after text, p_limit int)
RETURNS TABLE (locator text, freed boolean)
LANGUAGE plpgsql VOLATILE {as_owner} SET enable_seqscan = off AS $$
DECLARE
    v_begin text := format('v1:%s.%s.', p_volume, p_segment);
    -- A slash is the character after a dot.
    v_below text := format('v1:%s.%s/', p_volume, p_segment);
    v_after text := greatest(p_after COLLATE "C", v_begin COLLATE "C");
    v_named text[];
    v_extents text[];
    v_freed text[] := '{}';
    v_fault text;
    v_some text[];
    v_pid bigint;
BEGIN
    -- An older snapshot than the fence would miss rows.
    PERFORM mantle.raise_fault(coalesce(
                mantle.mutation_fault_code(),
                CASE WHEN (p_volume > 0 AND p_segment >= 0 AND p_limit BETWEEN 1 AND 100000) IS NOT TRUE
                     THEN '{invalid_argument}' END));
    FOR v_pid IN SELECT * FROM mantle.volume_nodes() LOOP
        SELECT f INTO v_fault FROM mantle.admitted_fault_delegated(v_pid, p_volume, p_segment, p_epoch) AS f;
        PERFORM mantle.raise_fault(v_fault);
    END LOOP;
    IF mantle.is_distributed() THEN
        FOR v_pid IN SELECT * FROM mantle.directory_of_each_node() LOOP
            PERFORM FROM mantle.latch_moves_delegated(v_pid);
        END LOOP;
    END IF;
    v_named := ARRAY(SELECT DISTINCT m.locator FROM mantle.meta m WHERE m.locator > v_after AND m.locator < v_below
                      ORDER BY m.locator LIMIT p_limit);
    v_extents := ARRAY(SELECT DISTINCT e.locator FROM mantle.extents e WHERE e.locator > v_after AND e.locator < v_below
                        ORDER BY e.locator LIMIT p_limit);
    FOR v_pid IN SELECT * FROM mantle.volume_nodes() LOOP
        SELECT f INTO v_some FROM mantle.freed_between_delegated(v_pid, v_after, v_below, p_limit) AS f;
        v_freed := v_freed || v_some;
    END LOOP;
    RETURN QUERY
    SELECT u.locator, bool_and(u.freed)
      FROM (SELECT n, false FROM unnest(v_named || v_extents) AS n
             UNION ALL SELECT f, true FROM unnest(v_freed) AS f) AS u(locator, freed)
     GROUP BY u.locator ORDER BY u.locator COLLATE "C" LIMIT p_limit;
END $$;
