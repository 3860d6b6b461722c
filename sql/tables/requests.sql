-- Where the change was, so that it is one transaction on one node. One unique key, no time partitions (they lose uniqueness at
-- the boundary). Purged by the worker after mantle.request_retention_s, and the oldest where there are more than
-- mantle.request_rows_max (sql/admin/purge.sql).
CREATE TABLE mantle.requests (
    ns           bigint NOT NULL,
    principal    int NOT NULL,
    request_id   uuid NOT NULL,
    request_hash bigint NOT NULL,
    verb         text NOT NULL,
    pid          bigint NOT NULL,
    id           bigint,
    version      bigint,
    created      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (ns, principal, request_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX requests_created ON mantle.requests (created);
SELECT pg_catalog.pg_extension_config_dump('mantle.requests', '');
COMMENT ON TABLE mantle.requests IS 'Answers to request ids: a retry gets the first one. Only successes are kept';
COMMENT ON COLUMN mantle.requests.created IS 'When it was recorded: while all latches were held, so two changes that conflict stand in this order';
COMMENT ON COLUMN mantle.requests.request_hash IS 'Of the request as the client sees it; another one under the same id is refused ({request_mismatch})';
COMMENT ON INDEX mantle.requests_pkey IS 'One answer a request id; on Citus, in a directory';
COMMENT ON INDEX mantle.requests_created IS 'By age: what is to be purged';
