-- Directories that lost an entry, or were implied by a key whose object is not there yet. Appended without looking (two last
-- deletes each see the other's row: an eager rule never prunes), looked at by the worker after mantle.prune_grace_ms.
-- By the pid where the change was: so the row is on the node of the change.
CREATE TABLE mantle.prune_queue (
    pid    bigint NOT NULL,
    seq    bigint NOT NULL,
    id     bigint NOT NULL,
    queued timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pid, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX prune_queue_queued ON mantle.prune_queue (queued);
SELECT pg_catalog.pg_extension_config_dump('mantle.prune_queue', '');
COMMENT ON TABLE mantle.prune_queue IS 'Directories to be pruned if they are implicit and still empty after the grace period';
COMMENT ON COLUMN mantle.prune_queue.pid IS 'Where the change was: the directory itself, or its parent';
COMMENT ON COLUMN mantle.prune_queue.seq IS 'Tells rows of a directory apart';
COMMENT ON COLUMN mantle.prune_queue.id IS 'The directory to be looked at';
COMMENT ON INDEX mantle.prune_queue_pkey IS 'Rows of a directory';
COMMENT ON INDEX mantle.prune_queue_queued IS 'By age: what is due';
