--- The MetaTable: entries, attribute records and delta records of all directories
-- It has three kinds of rows:
-- - an entry (pid, name, 0). A directory's name ends in a slash and its `explicit` is not null; an object's is null;
-- - a primary attribute record (pid, '/_ATTR', 0): the counts of directory pid; removed = true makes it a tombstone. It
--   has owner, grp and mode once these were changed, as the directory's entry has them (P56);
-- - a delta record (pid, '/_ATTR', ts > 0): what one call adds to the counts.
-- Two directories have no entry of their own: 0, the parent of the namespaces' roots, and 1, the trash. The trash
-- holds removed trees that are not emptied yet, named by their ids (sql/verbs/remove_tree.sql). No path leads to it.
-- A directory without an attribute record is live and empty. `pid` says where entries are stored (a partition id),
-- `id` names a directory or object. Today each directory has one partition, with the directory's id.
CREATE TABLE mantle.meta (
    --- Where the entry is: partition (= id) of the parent directory
    pid            bigint NOT NULL,
    --- Name in the parent; a directory's ends in a slash; /_ATTR for attribute and delta records
    name           text COLLATE "C" NOT NULL,
    --- 0, or > 0 for a delta record
    ts             bigint NOT NULL DEFAULT 0,
    --- Namespace: id of its root directory
    ns             bigint NOT NULL,
    --- Permanent id of the directory or object, never reused
    id             bigint,
    owner          int,
    grp            int,
    mode           int,
    --- Record version, 1 at creation, raised by every change of the entry
    version        bigint,
    --- Directories only: true if made by request, false if implied by a key; an implicit directory is removed after
    --- its last entry
    explicit       boolean,
    size           bigint,
    --- True if the import invented the size
    synthetic      boolean,
    etag           text,
    content_type   text,
    user_metadata  jsonb,
    --- Where the bytes are. In byte order, the locators of a volume's segment are adjacent
    locator        text COLLATE "C",
    --- Objects only: true if another object may use the same bytes (mantle.copy_object). Then only the sweeper removes
    --- them
    shared         boolean,
    --- When the entry was made; for a tombstone, when the directory was removed
    created        timestamptz,
    modified       timestamptz,
    entries        bigint,
    subdirectories bigint,
    bytes          bigint,
    --- Attribute records only: true for a tombstone
    removed        boolean,
    PRIMARY KEY (pid, name, ts)
) WITH (
    -- Delta and attribute records of a hot directory change thousands of times a second. With the default settings
    -- dirstat takes five times as long.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    -- Space for in-place (HOT) updates of attribute records.
    fillfactor = 95
);
--- A directory's entry by its id: path_of, pruning, check
CREATE INDEX meta_directory_id ON mantle.meta (id) WHERE explicit IS NOT NULL;
--- A directory's subdirectories without its objects: du and other walks downwards
-- By an index-only scan. `ns` is included for the row-level security policy; it never changes, so updates stay in
-- place (HOT).
CREATE INDEX meta_subdirectory ON mantle.meta (pid, id) INCLUDE (ns) WHERE explicit IS NOT NULL;
--- All primary attribute records: du
-- Neither column ever changes, so updates of the records stay in place (HOT).
CREATE INDEX meta_attribute ON mantle.meta (pid) WHERE name = '/_ATTR' AND ts = 0;
--- Finds whether a data locator is used, and the locators in a segment of a volume
-- Imported objects have none, so an import does not write to this index.
CREATE INDEX meta_locator ON mantle.meta (locator) WHERE locator IS NOT NULL;
--- Delta records, for compaction
-- It is nearly always almost empty.
CREATE INDEX meta_delta ON mantle.meta (pid) WHERE ts > 0;
--- Tombstones by the time of removal, for the purge
-- By `created`: every count changes `modified`, and an update of an indexed column would not stay in place (HOT).
CREATE INDEX meta_tombstone ON mantle.meta (created) WHERE removed;

--- Distinguishes delta records, and rows of the prune queue, of one directory; may repeat and skip
-- Their order means nothing. The number is used inside the transaction that writes the row, so a failover cannot repeat
-- it, as it could an id. Each node of Citus counts for itself, above mantle.delta_ts_base(). Delta records reuse its
-- last digits (extension/src/steps/counts.rs).
CREATE SEQUENCE mantle.delta_ts CACHE 16;

SELECT pg_catalog.pg_extension_config_dump('mantle.meta', '');
SELECT pg_catalog.pg_extension_config_dump('mantle.delta_ts', '');
GRANT SELECT ON mantle.meta TO mantle_analyst;

COMMENT ON INDEX mantle.meta_pkey IS 'Serves every read and change of an entry, and lists in name order';
