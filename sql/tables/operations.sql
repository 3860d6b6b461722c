--- Background operations: removals of directories with everything below them
-- Background operations: the removal of a directory with everything below it. The transaction that moves the directory
-- into the trash inserts the row, the worker carries it out (sql/admin/empty_trash.sql), and the purge deletes it
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
--- The running operation that has waited longest
-- The worker takes the operation that has waited longest.
CREATE INDEX operations_running ON mantle.operations (stepped) WHERE state = 'running';
--- By end time, for the purge
CREATE INDEX operations_finished ON mantle.operations (finished) WHERE state = 'done';
SELECT pg_catalog.pg_extension_config_dump('mantle.operations', '');
COMMENT ON COLUMN mantle.operations.pid IS
    'Always the trash: on Citus this puts the row on the node of the removed directories'' entries';
COMMENT ON COLUMN mantle.operations.directory_id IS
    'The removed directory; it is in the trash (pid 1) while the operation runs';
COMMENT ON COLUMN mantle.operations.objects IS
    'Objects removed so far; likewise directories (including the requested one) and bytes';
COMMENT ON COLUMN mantle.operations.stepped IS 'When the worker last worked on it';
COMMENT ON INDEX mantle.operations_pkey IS 'An operation by its id';
