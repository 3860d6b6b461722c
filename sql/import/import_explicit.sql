-- An import makes new entries. It also has to find directories, and to keep those that its listing names. These
-- functions do only that, so that the role of imports cannot read entries, nor change them in other ways.

--- importer: The ids of directories by place (names end in a slash); no row for one that is missing
CREATE FUNCTION mantle.import_known(p_ns bigint, p_pid bigint[], p_name text[]) RETURNS TABLE (ord int, id bigint)
LANGUAGE plpgsql STABLE {as_owner} AS $$
BEGIN
    RETURN QUERY SELECT s.ord, s.id FROM mantle.stat(p_ns, p_pid, p_name) AS s
                  WHERE s.code IS NULL AND s.name LIKE '%/';
END $$;

--- importer: Makes directories of an import explicit, so that they stay when they are empty. One that is missing is made, with
--- owner, group and mode of the namespace's root. {already_exists}: it was explicit before
-- A repeated call changes nothing, so it needs no request ids of its own.
CREATE FUNCTION mantle.import_explicit(p_principal int, p_ns bigint, p_pid bigint[], p_name text[], p_id bigint[])
RETURNS TABLE (ord int, code text) LANGUAGE plpgsql VOLATILE {as_owner} SET lock_timeout = '10s' AS $$
DECLARE
    v_size int[] := ARRAY[cardinality(p_name)];
    v_root mantle.meta;
BEGIN
    PERFORM mantle.raise_fault(mantle.batch_fault(v_size[1], ARRAY[cardinality(p_pid), cardinality(p_id)]));
    SELECT * INTO v_root FROM mantle.meta m WHERE m.id = p_ns AND m.explicit IS NOT NULL AND m.pid = 0;
    IF v_root.id IS NULL THEN
        PERFORM mantle.raise_fault('{namespace_not_found}');
    END IF;
    RETURN QUERY SELECT m.ord, m.code FROM mantle.mkdir(
        array_fill(p_principal, v_size), array_fill(p_ns, v_size), p_pid, p_name, p_id,
        array_fill(v_root.owner, v_size), array_fill(v_root.grp, v_size), array_fill(v_root.mode, v_size),
        array_fill(true, v_size), array_fill(NULL::jsonb, v_size),
        ARRAY(SELECT gen_random_uuid() FROM generate_series(1, v_size[1])), array_fill(0::bigint, v_size),
        p_caller => array_fill('0'::text, v_size)) AS m;
END $$;
