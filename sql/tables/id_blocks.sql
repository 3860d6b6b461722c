--- Allocated id ranges, never overlapping, never reused
-- They are committed rows, because a sequence repeats ids after a failover (P9).
CREATE TABLE mantle.id_blocks (
    first_id  bigint PRIMARY KEY,
    last_id   bigint NOT NULL,
    --- Citus group of the node that allocated the block, to which the timeline belongs; 0 without Citus
    node      int NOT NULL DEFAULT 0,
    timeline  int NOT NULL,
    owner     text NOT NULL,
    allocated timestamptz NOT NULL DEFAULT now(),
    CHECK (last_id >= first_id)
);
SELECT pg_catalog.pg_extension_config_dump('mantle.id_blocks', '');
GRANT SELECT ON mantle.id_blocks TO mantle_analyst;
COMMENT ON INDEX mantle.id_blocks_pkey IS 'Finds the block of an id';
