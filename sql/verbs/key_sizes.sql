-- Renames of directories leave every key below them within the limits (P55). What bounds the keys of a namespace is kept in
-- its row, so that a rename need not read many entries below the directory: no key is larger than the largest that was
-- made and all that such renames have added. A rename for which that is too much measures the directory.

--- gateway, importer: Notes that keys of this size may be made from now on
CREATE FUNCTION mantle.raise_key_size(p_ns bigint, p_levels int, p_bytes int) RETURNS void
LANGUAGE plpgsql VOLATILE {as_change} AS $$
BEGIN
    UPDATE mantle.namespaces n
       SET key_levels = greatest(n.key_levels, p_levels), key_bytes = greatest(n.key_bytes, p_bytes)
     WHERE n.ns = p_ns AND (n.key_levels < p_levels OR n.key_bytes < p_bytes);
END $$;

--- gateway: Notes that a directory is about to move to a path that has more components or bytes. False, and nothing noted, if
--- a key may become larger than the limits
CREATE FUNCTION mantle.admit_move(p_ns bigint, p_levels int, p_bytes int) RETURNS boolean
LANGUAGE plpgsql VOLATILE {as_change} AS $$
BEGIN
    UPDATE mantle.namespaces n
       SET moved_levels = n.moved_levels + greatest(p_levels, 0), moved_bytes = n.moved_bytes + greatest(p_bytes, 0)
     WHERE n.ns = p_ns AND n.key_levels + n.moved_levels + greatest(p_levels, 0) <= {PATH_DEPTH_MAX}
       AND n.key_bytes + n.moved_bytes + greatest(p_bytes, 0) <= {KEY_BYTES_MAX};
    RETURN FOUND;
END $$;
