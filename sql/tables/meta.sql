-- The MetaTable. Three kinds of rows:
--   an entry       (pid, name, 0): a directory's name ends in a slash, and `explicit` is not null; an object's does not
--   a primary attribute record (pid, '/_ATTR', 0): counts of directory pid; removed = true makes it a tombstone
--   a delta record (pid, '/_ATTR', ts > 0): what one call adds to those
-- Two directories have no entry of their own: 0, the parent of the namespaces' roots, and 1, the trash, whose entries are
-- removed trees that are not emptied yet, named by their ids (sql/verbs/remove_tree.sql); no path leads there.
-- A directory without an attribute record is live and empty. `pid` is where entries are (a partition id), `id` which
-- directory or object: today every directory has one partition, of its own id.
CREATE TABLE mantle.meta (
    pid            bigint NOT NULL,
    name           text COLLATE "C" NOT NULL,
    ts             bigint NOT NULL DEFAULT 0,
    ns             bigint NOT NULL,
    id             bigint,
    owner          int,
    grp            int,
    mode           int,
    version        bigint,
    explicit       boolean,
    size           bigint,
    synthetic      boolean,
    etag           text,
    content_type   text,
    user_metadata  jsonb,
    locator        text,
    created        timestamptz,
    modified       timestamptz,
    entries        bigint,
    subdirectories bigint,
    bytes          bigint,
    removed        boolean,
    PRIMARY KEY (pid, name, ts)
) WITH (
    -- Delta and attribute records of a hot directory are updated and removed thousands of times a second: with the
    -- defaults dirstat takes five times as long.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    -- Room for the in-place (HOT) updates of attribute records.
    fillfactor = 95
);
-- path_of, pruning, check: a directory's entry by its id.
CREATE INDEX meta_directory_id ON mantle.meta (id) WHERE explicit IS NOT NULL;
-- du, and whatever walks down: a directory's subdirectories without its objects, from the index alone. `ns` is for the policy
-- of row-level security, which looks at it; it never changes, so updates in place (HOT) stay possible.
CREATE INDEX meta_subdirectory ON mantle.meta (pid, id) INCLUDE (ns) WHERE explicit IS NOT NULL;
-- du: all primary attribute records. Neither column ever changes, so their updates stay in place (HOT).
CREATE INDEX meta_attribute ON mantle.meta (pid) WHERE name = '/_ATTR' AND ts = 0;
-- Is this locator used? Imported objects have none, so an import does not write to it.
CREATE INDEX meta_locator ON mantle.meta (locator) WHERE locator IS NOT NULL;
-- What compaction has to do: delta records only, so nearly always nearly empty.
CREATE INDEX meta_delta ON mantle.meta (pid) WHERE ts > 0;
-- What the purge of tombstones has to do. By a column that counts do not change: an update stays in place (HOT) only if it
-- changes none that any index names, and with `modified` here none ever did.
CREATE INDEX meta_tombstone ON mantle.meta (created) WHERE removed;

-- Tells delta records, and rows of the prune queue, of a directory apart; order means nothing. Used inside of the
-- transaction that writes the row, so unlike an id it cannot be repeated by a failover. Each node of Citus counts for
-- itself, above mantle.delta_ts_base(); delta records use the last digits of it again and again (extension/src/steps/counts.rs).
CREATE SEQUENCE mantle.delta_ts CACHE 16;

SELECT pg_catalog.pg_extension_config_dump('mantle.meta', '');
SELECT pg_catalog.pg_extension_config_dump('mantle.delta_ts', '');
GRANT SELECT ON mantle.meta TO mantle_analyst;

COMMENT ON TABLE mantle.meta IS 'The MetaTable: entries, attribute records and delta records of all directories';
COMMENT ON COLUMN mantle.meta.pid IS 'Where the entry is: partition (= id) of the parent directory';
COMMENT ON COLUMN mantle.meta.name IS 'Name in the parent; a directory''s ends in a slash; /_ATTR for attribute and delta records';
COMMENT ON COLUMN mantle.meta.ts IS '0, or > 0 for a delta record';
COMMENT ON COLUMN mantle.meta.ns IS 'Namespace: id of its root directory';
COMMENT ON COLUMN mantle.meta.id IS 'Permanent id of the directory or object, never reused';
COMMENT ON COLUMN mantle.meta.version IS 'Record version, 1 at creation, raised by every change of the entry';
COMMENT ON COLUMN mantle.meta.explicit IS 'Directories only: made by request, rather than implied by a key; implicit ones go with their last entry';
COMMENT ON COLUMN mantle.meta.synthetic IS 'The size was made up by the import';
COMMENT ON COLUMN mantle.meta.created IS 'Of an entry; of a tombstone, when the directory was removed';
COMMENT ON COLUMN mantle.meta.removed IS 'Attribute record: true for a tombstone';
COMMENT ON INDEX mantle.meta_pkey IS 'Every read and change of an entry, and lists in name order';
COMMENT ON INDEX mantle.meta_directory_id IS 'A directory''s entry by its id: path_of, pruning, check';
COMMENT ON INDEX mantle.meta_subdirectory IS 'A directory''s subdirectories without its objects: du, and whatever walks down';
COMMENT ON INDEX mantle.meta_attribute IS 'All primary attribute records: du';
COMMENT ON INDEX mantle.meta_locator IS 'Is a data locator used?';
COMMENT ON INDEX mantle.meta_delta IS 'Delta records: what compaction has to do';
COMMENT ON INDEX mantle.meta_tombstone IS 'Tombstones by the time of the removal: what is to be purged';
COMMENT ON SEQUENCE mantle.delta_ts IS 'Tells delta records, and rows of the prune queue, of a directory apart; may repeat and skip';
