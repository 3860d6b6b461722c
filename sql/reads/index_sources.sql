--- index: The nodes whose change streams together contain every change of a directory
-- These have shards of the MetaTable or may get some. Without Citus it is this node, whatever its address. A node keeps
-- its number when a standby takes over.
CREATE FUNCTION mantle.index_sources() RETURNS TABLE (source int, host text, port int)
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    IF NOT mantle.is_distributed() THEN
        RETURN QUERY SELECT 0, NULL::text, NULL::int;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT n.groupid, n.nodename, n.nodeport FROM pg_dist_node n
     WHERE n.noderole = 'primary' AND n.isactive
       AND (n.shouldhaveshards OR EXISTS (
               SELECT FROM pg_dist_placement p JOIN pg_dist_shard s ON s.shardid = p.shardid
                WHERE p.groupid = n.groupid AND s.logicalrelid = 'mantle.meta'::regclass))
     ORDER BY 1;
END $$;

--- gateway, importer, monitor: The number of this node among mantle.index_sources(); NULL if it is not among them
-- Gateways ask this every second on each node.
CREATE FUNCTION mantle.index_source() RETURNS int LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    IF NOT mantle.is_distributed() THEN
        RETURN 0;
    END IF;
    RETURN (SELECT s.source FROM mantle.index_sources() AS s JOIN pg_dist_local_group l ON l.groupid = s.source);
END $$;
