--- What is wrong with replicas of index groups, as the groups' leaders last reported it; no row: nothing
-- Unlogged: it says what is so now, on a server that runs, and a leader reports again what a crash or a failover lost.
-- On Citus each node has its own rows: leaders write where they are connected.
CREATE UNLOGGED TABLE mantle.index_replica_reports (
    index_group int NOT NULL,
    --- The replica's id in its Raft group
    node_id     text NOT NULL,
    address     text NOT NULL,
    problem     text NOT NULL,
    --- When it was reported first
    since       timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT ON mantle.index_replica_reports TO mantle_monitor;
