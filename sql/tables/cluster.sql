--- The identity of this metadata database, with which stores of objects' bytes are marked
-- A database that is restored from a dump has a row of its own and that of the one that was dumped. The oldest counts, so
-- the bytes of that one are its bytes. Citus: the coordinator's counts.
CREATE TABLE mantle.cluster (
    id   uuid PRIMARY KEY,
    made timestamptz NOT NULL
);
INSERT INTO mantle.cluster (id, made) VALUES (pg_catalog.gen_random_uuid(), pg_catalog.clock_timestamp());
SELECT pg_catalog.pg_extension_config_dump('mantle.cluster', '');
COMMENT ON INDEX mantle.cluster_pkey IS 'No identity twice';
