--- Directories to prune if they are implicit and still empty after the grace period
-- They lost an entry, or a key implied them whose object is not stored yet. Calls append without checking, because two
-- concurrent last deletes each see the other's row, and an eager check would never prune. The worker checks after
-- mantle.prune_grace_ms. `pid` is where the change was, so the row is on the node of the change.
CREATE TABLE mantle.prune_queue (
    --- Where the change was: in the directory itself or in its parent
    pid    bigint NOT NULL,
    --- Distinguishes rows of one directory
    seq    bigint NOT NULL,
    --- The directory to check
    id     bigint NOT NULL,
    queued timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pid, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
--- By age, for the rows that are due
CREATE INDEX prune_queue_queued ON mantle.prune_queue (queued);
SELECT pg_catalog.pg_extension_config_dump('mantle.prune_queue', '');
COMMENT ON INDEX mantle.prune_queue_pkey IS 'Rows of a directory';
