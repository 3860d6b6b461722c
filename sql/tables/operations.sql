--- Background operations: removals of directories with everything below them
-- The transaction that moves the directory into the trash inserts the row, the worker carries it out
-- (sql/admin/empty_trash.sql), and the purge deletes it mantle.request_retention_s after its end.
CREATE TABLE mantle.operations (
    --- Always the trash: on Citus this puts the row on the node of the removed directories' entries
    pid          bigint NOT NULL DEFAULT 1 CHECK (pid = 1),
    id           uuid NOT NULL,
    ns           bigint NOT NULL,
    principal    int NOT NULL,
    kind         text NOT NULL CHECK (kind = 'remove_tree'),
    state        text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done')),
    --- The removed directory; it is in the trash (pid 1) while the operation runs
    directory_id bigint NOT NULL,
    --- Objects removed so far; likewise directories (including the requested one) and bytes
    objects      bigint NOT NULL DEFAULT 0,
    directories  bigint NOT NULL DEFAULT 0,
    bytes        bigint NOT NULL DEFAULT 0,
    created      timestamptz NOT NULL DEFAULT now(),
    --- When the worker last worked on it
    stepped      timestamptz NOT NULL DEFAULT now(),
    finished     timestamptz,
    PRIMARY KEY (pid, id)
);
--- The running operation that has waited longest
CREATE INDEX operations_running ON mantle.operations (stepped) WHERE state = 'running';
--- By end time, for the purge
CREATE INDEX operations_finished ON mantle.operations (finished) WHERE state = 'done';
SELECT pg_catalog.pg_extension_config_dump('mantle.operations', '');
COMMENT ON INDEX mantle.operations_pkey IS 'An operation by its id';
