-- Bytes inside PostgreSQL (P62). A verb that writes, replaces, moves or removes a row with such a locator does the same to its
-- bytes, in the same transaction and on the same node, under the latch of the object's name.

--- The number in the locator of bytes inside PostgreSQL; NULL for any other locator
CREATE FUNCTION mantle.inline_id(p_locator text) RETURNS bigint
LANGUAGE sql IMMUTABLE RETURN CASE WHEN p_locator ~ '^inline:[1-9][0-9]{0,18}$' THEN substr(p_locator, 8)::bigint END;

--- Adds the bytes that a row of a directory names, if there are any
CREATE FUNCTION mantle.add_inline(p_pid bigint, p_locator text, p_bytes bytea) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE v_id bigint := mantle.inline_id(p_locator);
BEGIN
    IF p_bytes IS NOT NULL THEN
        INSERT INTO mantle.inline (pid, id, bytes) VALUES (p_pid, v_id, p_bytes);
    END IF;
END $$;

--- Removes bytes that rows of a directory no longer name; skips other locators
CREATE FUNCTION mantle.drop_inline(p_pid bigint, p_locators text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE v_ids bigint[] := ARRAY(SELECT mantle.inline_id(u.locator) FROM unnest(p_locators) AS u(locator));
BEGIN
    DELETE FROM mantle.inline i WHERE i.pid = p_pid AND i.id = ANY (v_ids);
END $$;

--- Reads the bytes of an object whose place is latched, for a change that spans directories; NULL if they are not there
-- p_takes: also removes them, because the caller writes them elsewhere.
CREATE FUNCTION mantle.inline_delegated(p_pid bigint, p_locator text, p_takes boolean) RETURNS bytea
LANGUAGE plpgsql VOLATILE {delegated} AS $$
DECLARE
    v_id bigint := mantle.inline_id(p_locator);
    v_bytes bytea;
BEGIN
    IF p_takes THEN
        DELETE FROM mantle.inline i WHERE i.pid = p_pid AND i.id = v_id RETURNING i.bytes INTO v_bytes;
    ELSE
        SELECT i.bytes INTO v_bytes FROM mantle.inline i WHERE i.pid = p_pid AND i.id = v_id;
    END IF;
    PERFORM mantle.raise_fault(mantle.placement_fault(ARRAY[p_pid]));
    RETURN v_bytes;
END $$;
