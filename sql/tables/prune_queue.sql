-- Directories that lost an entry, or were implied by a key whose object is not there yet. Appended without looking (two last
-- deletes each see the other's row: an eager rule never prunes), looked at by the worker after mantle.prune_grace_ms.
CREATE TABLE mantle.prune_queue (
    seq    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id     bigint NOT NULL,
    queued timestamptz NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
SELECT pg_catalog.pg_extension_config_dump('mantle.prune_queue', '');
SELECT pg_catalog.pg_extension_config_dump('mantle.prune_queue_seq_seq', '');
COMMENT ON TABLE mantle.prune_queue IS 'Directories to be pruned if they are implicit and still empty after the grace period';
