--- gateway: mantle.du by level of a directory by its id; it runs as the owner, while analysts see only what was granted to them.
--- No row: it was removed
-- It takes the id, because by now the path may lead to another directory, which the gateway has not checked.
CREATE FUNCTION mantle.usage(p_ns bigint, p_id bigint, p_depth int)
RETURNS TABLE (
    directory text, level int, objects bigint, directories bigint, bytes bigint, owner int, grp int, mode int)
LANGUAGE plpgsql STABLE {as_owner} AS $$
DECLARE d mantle.meta;
BEGIN
    SELECT * INTO d FROM mantle.meta m WHERE m.id = p_id AND m.explicit IS NOT NULL;
    -- With parent 1 it is in the trash.
    IF d.ns = p_ns AND d.pid <> 1 THEN
        RETURN QUERY SELECT * FROM mantle.du_below(d.ns, d.id, d.owner, d.grp, d.mode, p_depth);
    END IF;
END $$;
