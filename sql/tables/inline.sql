--- Bytes of small objects, written in the transaction of their row (P62). Only functions of the gateway read and write it
-- Its rows are where the rows of the objects are, also on Citus, and nothing else refers to them: a copy has bytes of its
-- own. The key is not the name, so a rename within a directory leaves the bytes alone.
CREATE TABLE mantle.inline (
    --- Partition of the object's directory, as in mantle.meta
    pid   bigint NOT NULL,
    --- The number in the object's locator, `inline:<number>`: an id that the write got, and that no other one has
    id    bigint NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (pid, id)
) WITH (
    -- Bytes up to about 8,000 stay in the row: one record of WAL and one page to read, where TOAST would write three rows
    -- and three entries of its index for 4 KiB.
    toast_tuple_target = 8160,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0
);
-- Objects are often compressed already, and to try costs more than the row.
ALTER TABLE mantle.inline ALTER COLUMN bytes SET STORAGE EXTERNAL;
SELECT pg_catalog.pg_extension_config_dump('mantle.inline', '');
COMMENT ON INDEX mantle.inline_pkey IS 'The bytes of an object';
