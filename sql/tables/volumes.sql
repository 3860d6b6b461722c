-- Volumes and their segments (docs/formats.md). On Citus only the coordinator has rows in the first two tables. They
-- are not reference tables: nothing can be written to those while a worker is down, so no segment could be leased.

--- Volumes: files or devices that hold the bytes of many objects
CREATE TABLE mantle.volumes (
    --- Number, which no other volume of the cluster has or had
    volume         int PRIMARY KEY CHECK (volume > 0),
    --- The folder or device where it was made, for people
    name           text NOT NULL,
    --- Bytes of a block and blocks of a segment; they never change
    block_bytes    int NOT NULL CHECK (block_bytes > 0),
    segment_blocks bigint NOT NULL CHECK (segment_blocks > 0),
    --- How many segments it has; a volume only grows
    segments       int NOT NULL CHECK (segments BETWEEN 1 AND {VOLUME_SEGMENTS_MAX}),
    --- active; read_only, draining: no segment is leased; lost: its bytes are gone
    state          text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'read_only', 'draining', 'lost')),
    --- Epoch of the last recorded mount; 0 before the first
    mount_epoch    bigint NOT NULL DEFAULT 0,
    --- The gateway that has mounted it, and when
    mounted_by     text,
    mounted        timestamptz,
    --- The history of this node in which it was last registered or mounted; in another history no mount is current
    lineage        text NOT NULL
);
SELECT pg_catalog.pg_extension_config_dump('mantle.volumes', '');
COMMENT ON INDEX mantle.volumes_pkey IS 'A volume by its number';

--- Segments that are or were leased; a segment without a row was never used
CREATE TABLE mantle.segments (
    volume      int NOT NULL,
    --- Number within the volume, from 0
    segment     int NOT NULL,
    --- Epoch of the last lease; it only grows, and no two leases have the same, also after a restore
    epoch       bigint NOT NULL,
    --- The mount to which it is leased; NULL: it is not leased
    mount_epoch bigint,
    --- The gateway of that mount, for people
    owner       text,
    --- The history of this node in which it was leased; the lease ends with it
    lineage     text,
    PRIMARY KEY (volume, segment)
);
SELECT pg_catalog.pg_extension_config_dump('mantle.segments', '');
COMMENT ON INDEX mantle.segments_pkey IS 'The segments of a volume';

--- The epoch of each segment under which this node lets rows name new bytes (P59); a segment without a row: none
-- Each node has its own rows, also on Citus. It is not dumped: a restored database admits nothing before segments are
-- leased again. extension/src/steps/segment.rs reads columns 1 and 2 by position.
CREATE TABLE mantle.admitted_segments (
    volume      int NOT NULL,
    segment     int NOT NULL,
    epoch       bigint NOT NULL,
    --- The mount to which it is leased
    mount_epoch bigint NOT NULL,
    --- The history of this node in which it was admitted; the admission ends with it
    lineage     text NOT NULL,
    PRIMARY KEY (volume, segment)
);
COMMENT ON INDEX mantle.admitted_segments_pkey IS 'The epoch of a segment';
