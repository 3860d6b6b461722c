--- Bytes in volumes that no row names any more, until the gateway that has their segment takes them (P60)
-- The transaction that removes the last row which names the bytes writes a row here. Each node has its own rows, also on
-- Citus: durability is known for each node, and a transaction number means nothing on another node. The table is not
-- dumped: the other tables show which blocks are free (P61).
CREATE TABLE mantle.freed (
    locator   text COLLATE "C" NOT NULL,
    --- 0: no row names the bytes any more. Otherwise others may; the transaction that removed one row that named them. So
    --- the removals of several copies do not wait for each other
    shared_by xid8 NOT NULL DEFAULT '0',
    volume    int NOT NULL,
    segment   int NOT NULL,
    --- The transaction that wrote the row
    xid       xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
    freed     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (locator, shared_by)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
--- Finds what was freed first in a volume
CREATE INDEX freed_volume ON mantle.freed (volume, freed) WHERE shared_by = '0';
--- Finds what is too old among the rows of shared bytes
CREATE INDEX freed_shared ON mantle.freed (volume, freed) WHERE shared_by <> '0';
COMMENT ON INDEX mantle.freed_pkey IS 'Finds the rows of a locator, and of a segment, whose locators begin alike';
