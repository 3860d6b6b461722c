--- gateway, importer, monitor: The smallest hash value (hashint8 of pid) of each shard of the MetaTable, in order, and the shard's node
-- Gateways cache this. No row: there is one node.
CREATE FUNCTION mantle.shard_map() RETURNS TABLE (hash_from int, host text, port int)
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    IF mantle.is_distributed() THEN
        RETURN QUERY
        SELECT s.shardminvalue::int, n.nodename, n.nodeport
          FROM pg_dist_shard s JOIN pg_dist_placement p ON p.shardid = s.shardid
          JOIN pg_dist_node n ON n.groupid = p.groupid AND n.noderole = 'primary'
         WHERE s.logicalrelid = 'mantle.meta'::regclass ORDER BY 1;
    END IF;
END $$;
