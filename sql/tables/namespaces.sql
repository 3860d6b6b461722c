CREATE TABLE mantle.namespaces (
    ns          bigint PRIMARY KEY,
    name        text COLLATE "C" NOT NULL UNIQUE,
    index_group int NOT NULL DEFAULT 1,
    owner       int NOT NULL,
    created     timestamptz NOT NULL DEFAULT now()
);
SELECT pg_catalog.pg_extension_config_dump('mantle.namespaces', '');
GRANT SELECT ON mantle.namespaces TO mantle_analyst;
COMMENT ON TABLE mantle.namespaces IS 'Namespaces (buckets), and the index group that serves each';
