-- One row, once there were more answers to request ids than mantle.request_rows_max: those that were purged for it. An id that
-- was made up to then, and is not recorded, is refused (extension/src/steps/request_age.rs): its answer may be among them. On Citus
-- each node purges by itself, and has its own.
CREATE TABLE mantle.purged_requests (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    up_to    timestamptz NOT NULL
);
SELECT pg_catalog.pg_extension_config_dump('mantle.purged_requests', '');
COMMENT ON TABLE mantle.purged_requests IS 'Up to when answers to request ids were purged because there were too many; no row: never';
COMMENT ON COLUMN mantle.purged_requests.up_to IS 'When the youngest of them was recorded';
COMMENT ON INDEX mantle.purged_requests_pkey IS 'At most one row';
