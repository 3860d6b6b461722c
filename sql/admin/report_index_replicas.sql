--- index: Records what is wrong with an index group's replicas, for check_cluster. An array of objects with node_id,
--- address and problem replaces what was recorded; an empty one clears it
-- The group's leader calls it, again and again while something is wrong: what is recorded already is not written again
-- and costs no transaction id. The commit waits for no standby: even a transaction that changes only an unlogged table
-- may write WAL, for hint bits. (A change that follows in the transaction is refused: {weak_commit}. One that came
-- before keeps its wait.)
CREATE FUNCTION mantle.report_index_replicas(p_index_group int, p_replicas jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE {as_change} AS $$
BEGIN
    IF jsonb_typeof(p_replicas) IS DISTINCT FROM 'array'
       OR NOT EXISTS (SELECT FROM mantle.index_groups g WHERE g.index_group = p_index_group) THEN
        PERFORM mantle.raise_fault('{invalid_argument}');
    END IF;
    IF EXISTS (SELECT FROM jsonb_array_elements(p_replicas) AS e(replica)
                WHERE e.replica->>'node_id' IS NULL OR e.replica->>'address' IS NULL
                   OR e.replica->>'problem' IS NULL) THEN
        PERFORM mantle.raise_fault('{invalid_argument}');
    END IF;
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    DELETE FROM mantle.index_replica_reports r
     WHERE r.index_group = p_index_group
       AND NOT EXISTS (SELECT FROM jsonb_to_recordset(p_replicas) AS n(node_id text, address text, problem text)
                        WHERE (n.node_id, n.address, n.problem) = (r.node_id, r.address, r.problem));
    INSERT INTO mantle.index_replica_reports (index_group, node_id, address, problem)
    SELECT DISTINCT p_index_group, n.node_id, n.address, n.problem
      FROM jsonb_to_recordset(p_replicas) AS n(node_id text, address text, problem text)
     WHERE NOT EXISTS (SELECT FROM mantle.index_replica_reports r
                        WHERE (r.index_group, r.node_id, r.address, r.problem)
                            = (p_index_group, n.node_id, n.address, n.problem));
END $$;

--- What leaders reported of index replicas on this node, as texts, for check_cluster
CREATE FUNCTION mantle.reported_index_replicas() RETURNS SETOF text LANGUAGE plpgsql STABLE {as_caller} AS $$
BEGIN
    -- A standby cannot read an unlogged table.
    IF NOT pg_is_in_recovery() THEN
        RETURN QUERY
        SELECT DISTINCT format('index group %s, replica %s at %s: %s', r.index_group, r.node_id, r.address, r.problem)
          FROM mantle.index_replica_reports r JOIN mantle.index_groups g ON g.index_group = r.index_group
         ORDER BY 1;
    END IF;
END $$;
