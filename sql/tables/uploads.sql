--- Multipart uploads of S3, also those that became objects; and manifests of other objects
-- An upload is found by its own id, not by its key's directory, which may be renamed or removed meanwhile. On Citus the
-- id decides where the row and its extents are. The row stays as long as the object, and as long as a repeated
-- CompleteMultipartUpload has to be answered.
CREATE TABLE mantle.uploads (
    --- Upload id, from the ids of entries; an object made of the upload has the locator `manifest:` and this number
    id                 bigint PRIMARY KEY,
    ns                 bigint NOT NULL,
    --- Key of the object to be made, in the namespace; empty: no upload, but a manifest (mantle.create_manifest_delegated)
    key                text COLLATE "C" NOT NULL,
    --- Owner and group of the object to be made
    principal          int NOT NULL,
    grp                int NOT NULL,
    content_type       text,
    user_metadata      jsonb,
    --- Checksum that the client has chosen for each part (CRC64NVME if NULL), and how the object's follows from them
    checksum_algorithm text,
    checksum_type      text NOT NULL CHECK (checksum_type IN ('FULL_OBJECT', 'COMPOSITE')),
    --- open: takes parts; sealed: the parts are chosen and the object is being made; done: it was made
    state              text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'sealed', 'done')),
    --- Which attempt to make the object this is; the request id of its put_object follows from it
    attempt            int NOT NULL DEFAULT 0,
    --- Sealed or done: hash of the chosen parts, the directory (pid) of the object, its etag, size and checksum
    list_hash          bigint,
    destination        bigint,
    etag               text,
    size               bigint,
    checksum           text,
    created            timestamptz NOT NULL DEFAULT now(),
    --- When the state changed last
    changed            timestamptz NOT NULL DEFAULT now(),
    --- When the sweeper first saw that no object names the manifest any more
    unused             timestamptz
);
--- The unfinished uploads of a namespace, in the order in which S3 lists them
CREATE INDEX uploads_unfinished ON mantle.uploads (ns, key, id) WHERE state <> 'done';
SELECT pg_catalog.pg_extension_config_dump('mantle.uploads', '');
GRANT SELECT ON mantle.uploads TO mantle_analyst;
COMMENT ON INDEX mantle.uploads_pkey IS 'An upload by its id';
