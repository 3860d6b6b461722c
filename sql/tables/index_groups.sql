CREATE TABLE mantle.index_groups (
    index_group       int PRIMARY KEY,
    epoch             bigint NOT NULL DEFAULT 0,
    cluster_id        text,
    slot_name         text NOT NULL,
    system_identifier bigint,
    timeline          int,
    changes           bigint NOT NULL DEFAULT 0
);
INSERT INTO mantle.index_groups (index_group, slot_name) VALUES (1, 'mantle_index_1');
-- Group 1 is made with the extension, so a dump leaves it out: the restored database has a slot, a system identifier and
-- so an index history of its own.
SELECT pg_catalog.pg_extension_config_dump('mantle.index_groups', 'WHERE index_group <> 1');
GRANT SELECT ON mantle.index_groups TO mantle_analyst, mantle_index, mantle_monitor;
COMMENT ON TABLE mantle.index_groups IS 'Raft groups of IndexNode replicas and their epoch: raised by whoever rebuilds an index or may have forgotten locks';

COMMENT ON COLUMN mantle.index_groups.changes IS 'How often a namespace that was assigned to the group ceased to be, or began to move: gateways remember assignments as long as it stays';

-- Empty: the stream carries our logical messages only. Must be there before the slot is made. CREATE PUBLICATION does not
-- make it a member of the extension, and ALTER EXTENSION cannot: so its dependency is entered by hand. Otherwise pg_dump
-- writes it out, and a restore, where CREATE EXTENSION has made it, fails.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = 'mantle_stream') THEN
        CREATE PUBLICATION mantle_stream;
        INSERT INTO pg_catalog.pg_depend (classid, objid, objsubid, refclassid, refobjid, refobjsubid, deptype)
        SELECT 'pg_catalog.pg_publication'::pg_catalog.regclass, p.oid, 0, 'pg_catalog.pg_extension'::pg_catalog.regclass, e.oid, 0, 'e'
          FROM pg_catalog.pg_publication p, pg_catalog.pg_extension e
         WHERE p.pubname = 'mantle_stream' AND e.extname = 'mantle';
    END IF;
END $$;
COMMENT ON INDEX mantle.index_groups_pkey IS 'A group by its number';
COMMENT ON PUBLICATION mantle_stream IS 'The change stream of mantle: logical messages, no table';
