--- gateway, importer: Entries by place: a name with a slash is a directory (the root: pid 0). {not_found} if there is none
-- One primary-key lookup per element, in the calling statement's snapshot.
CREATE FUNCTION mantle.stat(p_ns bigint, p_pid bigint[], p_name text[])
RETURNS TABLE (ord int, code text, name text, {entry.declared})
LANGUAGE plpgsql STABLE {as_owner} SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_pid bigint;
    v_name text;
BEGIN
    FOR i IN 1..greatest(cardinality(p_pid), cardinality(p_name)) LOOP
        -- Citus plans ahead only for plain variables.
        v_pid := p_pid[i];
        v_name := p_name[i];
        SELECT {entry.columns_of_e} INTO {entry.columns} FROM mantle.meta e
         WHERE e.pid = v_pid AND e.name = v_name AND e.ts = 0 AND e.ns = p_ns AND e.id IS NOT NULL;
        ord := i; name := v_name; code := CASE WHEN id IS NULL THEN '{not_found}' END;
        RETURN NEXT;
    END LOOP;
END $$;
