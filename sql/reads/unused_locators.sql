--- Citus: the id of one directory, which need not exist, on each node that has shards
CREATE FUNCTION mantle.directory_of_each_node() RETURNS SETOF bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_shards bigint := (SELECT count(*) FROM pg_dist_shard s WHERE s.logicalrelid = 'mantle.meta'::regclass);
    v_found bigint;
BEGIN
    -- Ids are spread by a hash. With 16 for each shard, one in ten million nodes that have one shard is missed.
    RETURN QUERY
    SELECT min(d.pid) FROM generate_series({ID_MIN}, {ID_MIN} + 16 * v_shards) AS d(pid)
      JOIN pg_dist_placement p ON p.shardid = get_shard_id_for_distribution_column('mantle.meta', d.pid)
     GROUP BY p.groupid;
    GET DIAGNOSTICS v_found = ROW_COUNT;
    IF v_found < (SELECT count(DISTINCT p.groupid) FROM pg_dist_placement p JOIN pg_dist_shard s USING (shardid)
                   WHERE s.logicalrelid = 'mantle.meta'::regclass) THEN
        RAISE EXCEPTION 'no id was found for a node that has shards';
    END IF;
END $$;

--- Those of the given data locators that a look at all objects, and then at all extents, does not find
-- In this order: a part that uses an object's bytes is committed while the object is there (P52), so whoever no longer
-- finds the object finds the part. The setting keeps the planner to lookups in the PostgreSQL indexes meta_locator and
-- extents_locator. On Citus every shard is read, because a locator does not say where its object is.
CREATE FUNCTION mantle.locators_without_object(p_locator text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE v_used text[] := ARRAY(SELECT m.locator FROM mantle.meta m WHERE m.locator = ANY (p_locator));
BEGIN
    v_used := v_used || ARRAY(SELECT e.locator FROM mantle.extents e WHERE e.locator = ANY (p_locator));
    RETURN ARRAY(SELECT u.locator FROM unnest(p_locator) AS u(locator) WHERE u.locator <> ALL (v_used));
END $$;

--- gateway: Returns those of the given data locators that no object and no part of an upload uses
-- The gateway's sweeper calls this before it removes bytes. On Citus the shards are read one after the other. An object
-- that moves meanwhile may leave one shard before its row appears in another, and be seen in neither. So what the first
-- look misses is looked for again while nothing moves (P51). 55P03 if moves do not end soon: ask again later.
CREATE FUNCTION mantle.unused_locators(p_locator text[]) RETURNS TABLE (locator text)
LANGUAGE plpgsql VOLATILE {as_owner} AS $$
DECLARE
    v_unused text[] := mantle.locators_without_object(p_locator);
    v_pid bigint;
BEGIN
    IF v_unused <> '{}' AND mantle.is_distributed() THEN
        FOR v_pid IN SELECT * FROM mantle.directory_of_each_node() LOOP
            PERFORM FROM mantle.latch_moves_delegated(v_pid);
        END LOOP;
        v_unused := mantle.locators_without_object(v_unused);
    END IF;
    RETURN QUERY SELECT u.locator FROM unnest(v_unused) AS u(locator);
END $$;
