-- What a batch of one new entry asks, in two probes: does the namespace exist and is the id of a block (PROTOCOLS 9); has
-- the directory no tombstone (PROTOCOLS 7) and no entry of the name, be it a directory's or an object's (PROTOCOLS 29)?
-- False says no more than that the way for all cases has to be taken, which finds out why.
CREATE FUNCTION mantle.is_free(p_ns bigint, p_pid bigint, p_name text, p_id bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM mantle.meta m
      WHERE m.pid = p_pid AND m.name IN ('/_ATTR', p_name, p_name || '/') AND m.ts = 0 AND (m.id IS NOT NULL OR m.removed);
    IF FOUND THEN
        RETURN false;
    END IF;
    RETURN EXISTS (SELECT FROM mantle.namespaces n WHERE n.ns = p_ns)
       AND (SELECT b.last_id >= p_id FROM mantle.id_blocks b WHERE b.first_id <= p_id ORDER BY b.first_id DESC LIMIT 1);
END $$;
COMMENT ON FUNCTION mantle.is_free(bigint, bigint, text, bigint) IS
    'May an entry be made here, as far as can be seen quickly? The name without a slash';
REVOKE ALL ON FUNCTION mantle.is_free(bigint, bigint, text, bigint) FROM PUBLIC;
