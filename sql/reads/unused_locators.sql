-- What the gateway's sweeper asks before it removes bytes. One lookup in the PostgreSQL index meta_locator each; the
-- settings keep the planner to it.
CREATE FUNCTION mantle.unused_locators(p_locator text[]) RETURNS TABLE (locator text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY
    SELECT u.locator FROM unnest(p_locator) AS u(locator)
     WHERE u.locator IS NOT NULL AND NOT EXISTS (SELECT FROM mantle.meta m WHERE m.locator = u.locator);
END $$;
COMMENT ON FUNCTION mantle.unused_locators(text[]) IS 'Of these data locators, those that no object names';
REVOKE ALL ON FUNCTION mantle.unused_locators(text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mantle.unused_locators(text[]) TO mantle_gateway;
