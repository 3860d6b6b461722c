--- gateway: Returns those of the given data locators that no object uses
-- The gateway's sweeper calls this before it removes bytes. The setting keeps the planner to lookups in the PostgreSQL
-- index meta_locator. On Citus every shard is read, because a locator does not say where its object is.
CREATE FUNCTION mantle.unused_locators(p_locator text[]) RETURNS TABLE (locator text)
LANGUAGE plpgsql STABLE {as_owner} SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE v_used text[] := ARRAY(SELECT m.locator FROM mantle.meta m WHERE m.locator = ANY (p_locator));
BEGIN
    RETURN QUERY SELECT u.locator FROM unnest(p_locator) AS u(locator) WHERE u.locator <> ALL (v_used);
END $$;
