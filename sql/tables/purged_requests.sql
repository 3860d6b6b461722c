--- Up to when answers to request ids were purged because there were too many; no row: never
-- Too many: more than mantle.request_rows_max. A request id that was made before and has no recorded answer is refused,
-- because its answer may have been purged (extension/src/steps/request_age.rs). On Citus each node purges alone and has
-- its own row.
CREATE TABLE mantle.purged_requests (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    --- When the youngest purged answer was recorded
    up_to    timestamptz NOT NULL
);
SELECT pg_catalog.pg_extension_config_dump('mantle.purged_requests', '');
COMMENT ON INDEX mantle.purged_requests_pkey IS 'At most one row';
