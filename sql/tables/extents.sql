--- The parts of uploads, and where their bytes are: one row for each piece of bytes
-- The extents of an upload that is sealed or done are the manifest of its object: its bytes may only move
-- (mantle.replace_extents_delegated). A part that was uploaded is one extent, or as many as its place in a volume has locators;
-- one that was copied has as many as its source has in that range.
CREATE TABLE mantle.extents (
    upload   bigint NOT NULL,
    part     int NOT NULL CHECK (part BETWEEN 1 AND 10000),
    --- Number within the part, from 0
    extent   int NOT NULL,
    --- The bytes: `length` of those that `locator` names, from its byte `start` on
    locator  text COLLATE "C" NOT NULL,
    start    bigint NOT NULL,
    length   bigint NOT NULL,
    --- Other objects may use the same bytes, so no delete removes them (P52)
    copied   boolean NOT NULL,
    --- First byte within the object; NULL while the part is not chosen
    position bigint,
    --- Extent 0 only: the part's etag (MD5, hexadecimal), checksum (base64) and time
    etag     text,
    checksum text,
    created  timestamptz,
    PRIMARY KEY (upload, part, extent)
);
--- Finds whether a data locator is used, and the locators in a segment of a volume
CREATE INDEX extents_locator ON mantle.extents (locator);
--- The extents of a range of an object
CREATE INDEX extents_position ON mantle.extents (upload, position) WHERE position IS NOT NULL;
SELECT pg_catalog.pg_extension_config_dump('mantle.extents', '');
COMMENT ON INDEX mantle.extents_pkey IS 'The extents of a part';
