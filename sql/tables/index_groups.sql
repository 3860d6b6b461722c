--- Raft groups of IndexNode replicas and their epoch. A rebuild of an index, or a loss of its locks, raises the epoch
CREATE TABLE mantle.index_groups (
    index_group       int PRIMARY KEY,
    epoch             bigint NOT NULL DEFAULT 0,
    cluster_id        text,
    slot_name         text NOT NULL,
    system_identifier bigint,
    timeline          int,
    --- Counts the namespaces that left the group or began to leave it: a gateway may use remembered assignments while
    --- this stays the same
    changes           bigint NOT NULL DEFAULT 0
);

--- The name of a new slot of an index group in this database. Slots belong to the server, so the name contains a hash
--- of the database's name. If another database has that slot, for example after ALTER DATABASE … RENAME, it is another
--- name
CREATE FUNCTION mantle.new_slot_name(p_index_group int) RETURNS text LANGUAGE sql STABLE {as_caller} AS $$
    SELECT c.name
      FROM (SELECT n, format('mantle_index_%s_%s', p_index_group, left(encode(sha256(
                       convert_to(current_database() || repeat('/', n), 'UTF8')), 'hex'), 8)) AS name
              FROM generate_series(0, 99) AS n) AS c
     WHERE NOT EXISTS (SELECT FROM pg_replication_slots s
                        WHERE s.slot_name = c.name AND s.database IS DISTINCT FROM current_database())
     ORDER BY c.n LIMIT 1
$$;
INSERT INTO mantle.index_groups (index_group, slot_name) VALUES (1, mantle.new_slot_name(1));
-- The extension makes group 1, so a dump leaves it out: the restored database has its own slot, system identifier and
-- index history.
SELECT pg_catalog.pg_extension_config_dump('mantle.index_groups', 'WHERE index_group <> 1');
GRANT SELECT ON mantle.index_groups TO mantle_analyst, mantle_index, mantle_monitor;

-- Empty, because the stream carries only our logical messages. It must exist before the slot is made.
-- `admin/restore_after_upgrade.sql` makes it a member of the extension.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = 'mantle_stream') THEN
        CREATE PUBLICATION mantle_stream;
    END IF;
END $$;
COMMENT ON INDEX mantle.index_groups_pkey IS 'A group by its number';
COMMENT ON PUBLICATION mantle_stream IS 'The change stream of mantle: logical messages, no table';
