--- The keys with which index groups sign what they have prepared
-- So PostgreSQL carries out no directory rename that no index has locked (indexnode/types/src/prepared.rs). Only the
-- group's leader (mantle.prepare_key) and our own functions read a key. Keys are not dumped, so a restored database has
-- its own.
CREATE TABLE mantle.prepare_keys (
    index_group int PRIMARY KEY,
    key         bytea NOT NULL
);
-- Keys of other groups are made with the group (mantle.create_index_group). A group from an older version has none;
-- PostgreSQL accepts its prepares unsigned until mantle.make_prepare_keys() is called. Call it when no IndexNode and
-- no gateway of that version runs any more.
INSERT INTO mantle.prepare_keys (index_group, key)
VALUES (1, pg_catalog.sha256(pg_catalog.uuid_send(pg_catalog.gen_random_uuid())
    || pg_catalog.uuid_send(pg_catalog.gen_random_uuid())));
COMMENT ON INDEX mantle.prepare_keys_pkey IS 'The key of a group';
