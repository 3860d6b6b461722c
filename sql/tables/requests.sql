--- Answers to request ids: a retry gets the first answer. Only successes are recorded
-- A row is stored where the change was, so that both are one transaction on one node. One unique key and no time
-- partitions, which would lose uniqueness at the boundary. The worker purges rows after mantle.request_retention_s,
-- and the oldest if there are more than mantle.request_rows_max (sql/admin/purge.sql).
CREATE TABLE mantle.requests (
    ns           bigint NOT NULL,
    principal    int NOT NULL,
    request_id   uuid NOT NULL,
    --- Hash of the request as the client sees it; another hash under the same id is refused ({request_mismatch})
    request_hash bigint NOT NULL,
    verb         text NOT NULL,
    pid          bigint NOT NULL,
    id           bigint,
    version      bigint,
    --- When it was recorded, while all latches were held: so it orders conflicting changes
    created      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (ns, principal, request_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
--- By age, for the purge
CREATE INDEX requests_created ON mantle.requests (created);
SELECT pg_catalog.pg_extension_config_dump('mantle.requests', '');
COMMENT ON INDEX mantle.requests_pkey IS 'One answer per request id; on Citus, per directory';
