--- gateway: Changes the mode bits that nothing new in a namespace gets, for its owner or uid 0; existing entries keep theirs
-- On Citus a session may make entries by the umask before for a second.
CREATE FUNCTION mantle.set_umask(p_principal int, p_name text, p_umask int, OUT code text)
LANGUAGE plpgsql VOLATILE {as_change} AS $$
DECLARE v_owner int := (SELECT n.owner FROM mantle.namespaces n WHERE n.name = p_name FOR UPDATE);
BEGIN
    PERFORM mantle.raise_fault(mantle.mutation_fault_code());
    code := CASE WHEN (p_umask BETWEEN 0 AND {UMASK_MAX} AND p_principal IS NOT NULL) IS NOT TRUE THEN '{invalid_argument}'
                 WHEN v_owner IS NULL THEN '{namespace_not_found}'
                 WHEN p_principal NOT IN (0, v_owner) THEN '{access_denied}' END;
    IF code IS NULL THEN
        UPDATE mantle.namespaces n SET umask = p_umask WHERE n.name = p_name;
    END IF;
END $$;
