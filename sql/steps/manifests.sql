--- The number of the upload whose extents are an object's bytes; NULL for the locator of any other object
CREATE FUNCTION mantle.manifest_id(p_locator text) RETURNS bigint
LANGUAGE sql IMMUTABLE RETURN CASE WHEN p_locator ~ '^manifest:[1-9][0-9]{0,17}$' THEN substr(p_locator, 10)::bigint END;
