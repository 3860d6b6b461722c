--- gateway: An upload of a namespace
CREATE FUNCTION mantle.upload(p_upload bigint, p_ns bigint) RETURNS SETOF mantle.uploads
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    RETURN QUERY SELECT * FROM mantle.uploads u WHERE u.id = p_upload AND u.ns = p_ns;
END $$;

--- gateway: The parts of an upload after a number, in order
CREATE FUNCTION mantle.list_parts(p_upload bigint, p_after int, p_limit int)
RETURNS TABLE (part int, size bigint, etag text, checksum text, created timestamptz)
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    RETURN QUERY
    SELECT e.part, sum(e.length)::bigint, max(e.etag), max(e.checksum), max(e.created) FROM mantle.extents e
     WHERE e.upload = p_upload AND e.part > p_after GROUP BY e.part ORDER BY e.part LIMIT p_limit;
END $$;

--- gateway: The extents of all parts of an upload, after one, in order
CREATE FUNCTION mantle.upload_extents(p_upload bigint, p_after_part int, p_after_extent int, p_limit int)
RETURNS TABLE (part int, extent int, locator text, start bigint, length bigint, etag text)
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    RETURN QUERY
    SELECT e.part, e.extent, e.locator, e.start, e.length, e.etag FROM mantle.extents e
     WHERE e.upload = p_upload AND (e.part, e.extent) > (p_after_part, p_after_extent)
     ORDER BY e.part, e.extent LIMIT p_limit;
END $$;

--- gateway: Unfinished uploads of a namespace after a key and, of that key, after an id, in the order of keys and ids
-- p_principal: only those of one principal; NULL: all.
CREATE FUNCTION mantle.list_uploads(
    p_ns bigint, p_prefix text, p_after_key text, p_after_id bigint, p_principal int, p_limit int)
RETURNS SETOF mantle.uploads LANGUAGE plpgsql STABLE {as_owner} AS $$
DECLARE
    v_from text := greatest(p_prefix COLLATE "C", p_after_key COLLATE "C");
    v_below text := mantle.prefix_end(p_prefix);
BEGIN
    RETURN QUERY
    SELECT * FROM mantle.uploads u
     WHERE u.ns = p_ns AND u.state <> 'done' AND u.key >= v_from AND (v_below IS NULL OR u.key < v_below)
       AND (u.key > p_after_key OR u.id > p_after_id) AND (p_principal IS NULL OR u.principal = p_principal)
     ORDER BY u.key, u.id LIMIT p_limit;
END $$;

--- gateway: All uploads after an id, in the order of ids, for the sweeper; without a namespace if it was removed
CREATE FUNCTION mantle.all_uploads(p_after bigint, p_limit int)
RETURNS TABLE (
    id bigint, ns bigint, namespace text, principal int, state text, attempt int, destination bigint, created timestamptz,
    changed timestamptz)
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    RETURN QUERY
    SELECT u.id, u.ns, n.name, u.principal, u.state, u.attempt, u.destination, u.created, u.changed
      FROM mantle.uploads u LEFT JOIN mantle.namespaces n ON n.ns = u.ns
     WHERE u.id > p_after ORDER BY u.id LIMIT p_limit;
END $$;

--- gateway: Where a part is in the object of a manifest, and how many parts the object has; no row without such a part
CREATE FUNCTION mantle.part_of_object(p_upload bigint, p_part int)
RETURNS TABLE (first_byte bigint, size bigint, checksum text, parts bigint)
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    RETURN QUERY
    SELECT min(e.position), sum(e.length)::bigint, max(e.checksum),
           (SELECT count(*) FROM mantle.extents c WHERE c.upload = p_upload AND c.extent = 0)
      FROM mantle.extents e WHERE e.upload = p_upload AND e.part = p_part AND e.position IS NOT NULL
    HAVING count(*) > 0;
END $$;

--- gateway: How many uploads of a namespace are not finished, and how many bytes their parts have
CREATE FUNCTION mantle.upload_usage(p_ns bigint, OUT uploads bigint, OUT bytes bigint)
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    SELECT count(DISTINCT u.id), coalesce(sum(e.length), 0)::bigint INTO uploads, bytes
      FROM mantle.uploads u LEFT JOIN mantle.extents e ON e.upload = u.id
     WHERE u.ns = p_ns AND u.state <> 'done';
END $$;

--- gateway: The extents of a manifest that hold bytes from one position to before another, in order
CREATE FUNCTION mantle.extents_between(p_upload bigint, p_from bigint, p_to bigint, p_limit int)
RETURNS TABLE (locator text, start bigint, length bigint, "position" bigint)
LANGUAGE plpgsql STABLE {as_owner} AS $$
DECLARE
    v_first bigint;
BEGIN
    SELECT max(e.position) INTO v_first FROM mantle.extents e WHERE e.upload = p_upload AND e.position <= p_from;
    RETURN QUERY
    SELECT e.locator, e.start, e.length, e.position FROM mantle.extents e
     WHERE e.upload = p_upload AND e.position >= v_first AND e.position < p_to AND e.length > 0
     ORDER BY e.position LIMIT p_limit;
END $$;
