--- Namespaces (buckets), and the index group that serves each
CREATE TABLE mantle.namespaces (
    ns          bigint PRIMARY KEY,
    name        text COLLATE "C" NOT NULL UNIQUE,
    --- The index group that answers lookups and prepares renames
    index_group int NOT NULL DEFAULT 1,
    owner       int NOT NULL,
    created     timestamptz NOT NULL DEFAULT now(),
    --- During a move: the group that it moves to; after the switch, the group that it came from
    other_group int,
    --- copy: the other group copies it; both and switched: a change is acknowledged when both groups have applied it
    move_phase  text CHECK (move_phase IN ('copy', 'both', 'switched')),
    --- Raised when a move begins and when the new group takes over. It orders the attempts of renames that different
    --- groups prepare, and an index has missed nothing of a namespace that never moved
    moves       int NOT NULL DEFAULT 0,
    --- No key was made with more components, or more bytes. Gateways raise both in a few steps, before they make larger keys
    key_levels  int NOT NULL DEFAULT {KEY_LEVELS_FIRST},
    key_bytes   int NOT NULL DEFAULT {KEY_BYTES_FIRST},
    --- How many components and bytes renames of directories may have added to keys since
    moved_levels bigint NOT NULL DEFAULT 0,
    moved_bytes  bigint NOT NULL DEFAULT 0,
    --- The mode bits of group and others that nothing new in it gets
    umask       int NOT NULL DEFAULT {UMASK_FIRST} CHECK (umask BETWEEN 0 AND {UMASK_MAX}),
    CONSTRAINT namespaces_move CHECK ((other_group IS NULL) = (move_phase IS NULL))
);
SELECT pg_catalog.pg_extension_config_dump('mantle.namespaces', '');
GRANT SELECT ON mantle.namespaces TO mantle_analyst;
COMMENT ON INDEX mantle.namespaces_pkey IS 'A namespace by its number';
COMMENT ON INDEX mantle.namespaces_name_key IS 'A namespace by its name; names are unique';
