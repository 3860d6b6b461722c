-- What an index group signs with what it has prepared (indexnode/types/src/prepared.rs), so that PostgreSQL carries out no
-- directory rename that no index has locked. Nobody reads it but the group's leader (mantle.prepare_key) and our functions. Not in a dump: the
-- restored database has keys of its own.
CREATE TABLE mantle.prepare_keys (
    index_group int PRIMARY KEY,
    key         bytea NOT NULL
);
-- Other groups' keys are made with them (mantle.create_index_group). A group that an older version made has none, and its prepares
-- are taken unsigned, until mantle.make_prepare_keys() is called: when no IndexNode and no gateway of that version runs any more.
INSERT INTO mantle.prepare_keys (index_group, key)
VALUES (1, pg_catalog.sha256(pg_catalog.uuid_send(pg_catalog.gen_random_uuid()) || pg_catalog.uuid_send(pg_catalog.gen_random_uuid())));
COMMENT ON INDEX mantle.prepare_keys_pkey IS 'A group''s key';
COMMENT ON TABLE mantle.prepare_keys IS 'The keys by which index groups sign what they have prepared';
