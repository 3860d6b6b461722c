--- The identity of this metadata database, with which stores of objects' bytes are marked
-- A database that is restored from a dump has its own row and the row of the dumped database. The oldest row counts, so
-- the bytes of the dumped database are also its bytes. On Citus the coordinator's row counts.
CREATE TABLE mantle.cluster (
    id   uuid PRIMARY KEY,
    made timestamptz NOT NULL
);
INSERT INTO mantle.cluster (id, made) VALUES (pg_catalog.gen_random_uuid(), pg_catalog.clock_timestamp());
SELECT pg_catalog.pg_extension_config_dump('mantle.cluster', '');
COMMENT ON INDEX mantle.cluster_pkey IS 'No identity twice';
