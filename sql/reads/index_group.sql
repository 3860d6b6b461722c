--- index, gateway: Epoch, cluster and slot of an index group
CREATE FUNCTION mantle.index_group(p_index_group int, OUT epoch bigint, OUT cluster_id text, OUT slot_name text)
LANGUAGE sql STABLE {as_owner} AS $$
    SELECT g.epoch, g.cluster_id, g.slot_name FROM mantle.index_groups g WHERE g.index_group = p_index_group
$$;
