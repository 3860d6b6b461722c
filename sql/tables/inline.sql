--- Bytes of small objects, written in the transaction of their row (P62). Only functions of the gateway read and write it
-- On Citus a row is on the node of its object's row. Only that object refers to it: a copy has bytes of its own. The key is
-- not the name, so a rename within a directory leaves the bytes alone.
CREATE TABLE mantle.inline (
    --- Partition of the object's directory, as in mantle.meta
    pid   bigint NOT NULL,
    --- The number in the object's locator, `inline:<number>`: an id that only this write has
    id    bigint NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (pid, id)
) WITH (
    -- Up to about 8,000 bytes stay in the row: one WAL record, and one page to read. For 4 KiB TOAST would write three rows
    -- and three entries of its index.
    toast_tuple_target = 8160,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0
);
-- Objects are often compressed already, and an attempt to compress costs more than writing the row.
ALTER TABLE mantle.inline ALTER COLUMN bytes SET STORAGE EXTERNAL;
SELECT pg_catalog.pg_extension_config_dump('mantle.inline', '');
COMMENT ON INDEX mantle.inline_pkey IS 'The bytes of an object';
