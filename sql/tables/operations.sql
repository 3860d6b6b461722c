-- Background operations: the removal of a directory with all that is below it. The row is written by the transaction that
-- moves the directory into the trash, worked off by the worker (sql/admin/empty_trash.sql), and purged
-- mantle.request_retention_s after its end.
CREATE TABLE mantle.operations (
    pid          bigint NOT NULL DEFAULT 1 CHECK (pid = 1),
    id           uuid NOT NULL,
    ns           bigint NOT NULL,
    principal    int NOT NULL,
    kind         text NOT NULL CHECK (kind = 'remove_tree'),
    state        text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done')),
    directory_id bigint NOT NULL,
    objects      bigint NOT NULL DEFAULT 0,
    directories  bigint NOT NULL DEFAULT 0,
    bytes        bigint NOT NULL DEFAULT 0,
    created      timestamptz NOT NULL DEFAULT now(),
    stepped      timestamptz NOT NULL DEFAULT now(),
    finished     timestamptz,
    PRIMARY KEY (pid, id)
);
-- The worker's turn: the one that waits longest.
CREATE INDEX operations_running ON mantle.operations (stepped) WHERE state = 'running';
CREATE INDEX operations_finished ON mantle.operations (finished) WHERE state = 'done';
SELECT pg_catalog.pg_extension_config_dump('mantle.operations', '');
COMMENT ON TABLE mantle.operations IS 'Background operations: removals of directories with all that is below them';
COMMENT ON COLUMN mantle.operations.pid IS 'The trash: so under Citus the row is where the removed directories'' entries are';
COMMENT ON COLUMN mantle.operations.directory_id IS 'The directory removed: in the trash (pid 1) while the operation runs';
COMMENT ON COLUMN mantle.operations.objects IS 'Removed so far; likewise directories (the one asked for included) and bytes';
COMMENT ON COLUMN mantle.operations.stepped IS 'When the worker last turned to it';
COMMENT ON INDEX mantle.operations_pkey IS 'An operation by its id';
COMMENT ON INDEX mantle.operations_running IS 'The one whose turn it is';
COMMENT ON INDEX mantle.operations_finished IS 'By the time of their end: what is to be purged';
