CREATE TABLE mantle.index_groups (
    index_group       int PRIMARY KEY,
    epoch             bigint NOT NULL DEFAULT 0,
    cluster_id        text,
    slot_name         text NOT NULL,
    system_identifier bigint,
    timeline          int
);
INSERT INTO mantle.index_groups (index_group, slot_name) VALUES (1, 'mantle_index_1');
-- Group 1 is made with the extension, so a dump leaves it out: the restored database has a slot, a system identifier and
-- so an index history of its own.
SELECT pg_catalog.pg_extension_config_dump('mantle.index_groups', 'WHERE index_group <> 1');
GRANT SELECT ON mantle.index_groups TO mantle_analyst, mantle_index;
COMMENT ON TABLE mantle.index_groups IS 'Raft groups of IndexNode replicas and their epoch: raised by whoever rebuilds an index or may have forgotten locks';

-- Empty: the stream carries our logical messages only. Must be there before the slot is made.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = 'mantle_stream') THEN
        CREATE PUBLICATION mantle_stream;
    END IF;
END $$;
