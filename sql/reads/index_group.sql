CREATE FUNCTION mantle.index_group(
    p_index_group int, OUT epoch bigint, OUT cluster_id text, OUT slot_name text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT g.epoch, g.cluster_id, g.slot_name FROM mantle.index_groups g WHERE g.index_group = p_index_group
$$;
COMMENT ON FUNCTION mantle.index_group IS 'Epoch, cluster and slot of an index group';
GRANT EXECUTE ON FUNCTION mantle.index_group TO mantle_index, mantle_gateway;
